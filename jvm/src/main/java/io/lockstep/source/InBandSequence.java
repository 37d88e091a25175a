package io.lockstep.source;

import io.lockstep.Progress;
import io.lockstep.order.InBandMerge;
import io.lockstep.order.InBandPlace;
import io.lockstep.order.Place;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;

/**
 * Stage topics in the order that the heartbeats among their events give: {@link InBandMerge} says which queue is next.
 *
 * <p>An event is taken as soon as it is its queue's turn; only a queue that is ahead of the others waits. All sites
 * write to these queues, and what one of them writes twice takes a turn as well, on every site alike: {@link Stage}
 * drops it afterwards.
 */
final class InBandSequence extends Sequence {
    private final Group group;
    private final int shard;
    private final List<QueueBuffer> queues;
    private InBandMerge merge;

    InBandSequence(Shard shard) {
        super(shard.key(), Consumers.of(shard.kafka(), shard.queues()));
        this.group = shard.group();
        this.shard = shard.shard();
        this.queues = shard.queues().stream()
                .map(queue -> new QueueBuffer(consumer, queue))
                .toList();
    }

    /** @param until always null: without the data nobody knows a place to stop at */
    @Override
    ConsumerRecord<byte[], byte[]> next(Place until, long patienceMs) {
        boolean polled = false;
        while (true) {
            ConsumerRecord<byte[], byte[]> record = queues.get(merge.next()).take();
            if (record == null) {
                if (polled) {
                    return null;
                }
                poll(patienceMs);
                polled = true;
                continue;
            }
            long sequence = Stage.isOutput(record) ? -1 : InBandMerge.sequence(record.value());
            if (sequence < 0) {
                sn = merge.event(record.offset());
                return record;
            }
            merge.heartbeat(record.offset(), sequence);
        }
    }

    @Override
    Place place() {
        return merge.place();
    }

    @Override
    long upcoming() {
        return merge.upcoming();
    }

    @Override
    void seek(Place from) {
        if (merge != null && merge.upcoming() == from.upcoming()) {
            return;
        }
        InBandPlace place = (InBandPlace) from;
        merge = new InBandMerge(place);
        for (int index = 0; index < queues.size(); index++) {
            queues.get(index).seek(place.inputs()[index]);
        }
    }

    @Override
    void report() {
        Progress.read(group.reported(), shard, merge.upcoming(), QueueBuffer.behind(queues));
    }

    private void poll(long patienceMs) {
        ConsumerRecords<byte[], byte[]> records = fetch(patienceMs);
        for (QueueBuffer queue : queues) {
            queue.add(records.records(queue.partition));
        }
        report();
    }
}
