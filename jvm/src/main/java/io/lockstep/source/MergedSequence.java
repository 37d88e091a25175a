package io.lockstep.source;

import io.lockstep.Progress;
import io.lockstep.order.Merge;
import io.lockstep.order.MergePlace;
import io.lockstep.order.OrderRecord;
import io.lockstep.order.Place;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.common.TopicPartition;

/**
 * Several queues in the order that an order topic gives: {@link Merge} says which queue is next, this fetches.
 *
 * <p>One consumer reads the order and the queues, so that one poll wakes up for any of them. A queue that a cut adds is
 * assigned to it when the merge begins that cut; what it has of the others, their positions and which of them are
 * paused stay as they are.
 */
final class MergedSequence extends Sequence {
    private static final int MOST_ORDERS = 2_000;

    private final Group group;
    private final int shard;
    private final TopicPartition order;
    private final Set<OrderRecord.Queue> growing;
    private final List<QueueBuffer> queues = new ArrayList<>();
    private boolean orderPaused;
    private boolean placed;
    private Merge merge;

    MergedSequence(Shard shard) {
        super(shard.key(), Consumers.of(shard.kafka(), everything(shard)));
        this.group = shard.group();
        this.shard = shard.shard();
        this.order = shard.group().order(shard.shard());
        this.growing = shard.growing();
        shard.queues().forEach(partition -> queues.add(new QueueBuffer(consumer, partition)));
    }

    @Override
    ConsumerRecord<byte[], byte[]> next(Place until, long patienceMs) {
        boolean polled = false;
        while (!reached(until)) {
            int from = peek();
            if (placed && from >= 0) {
                QueueBuffer queue = queues.get(from);
                long wanted = merge.offset();
                ConsumerRecord<byte[], byte[]> head = queue.peek();
                if (head != null || consumer.position(queue.partition) > wanted) {
                    sn = merge.upcoming();
                    boolean counts = merge.take();
                    if (head == null || head.offset() > wanted) {
                        continue; // a hole: markers and compaction leave them
                    }
                    queue.take();
                    if (counts) {
                        return head;
                    }
                    continue;
                }
            }
            if (polled) {
                return null;
            }
            poll(patienceMs);
            polled = true;
        }
        return null;
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
        MergePlace place = (MergePlace) from;
        merge = new Merge(place, growing);
        if (queues.size() > merge.queues()) { // back to before a cut that had added some
            queues.subList(merge.queues(), queues.size()).clear();
            assign();
        }
        admit();
        consumer.seek(order, place.orderOffset());
        consumer.resume(consumer.paused());
        orderPaused = false;
        placed = false;
        for (int index = 0; index < queues.size(); index++) {
            // Somewhere: a consumer refuses to poll at all while it has a partition without a position.
            consumer.seek(queues.get(index).partition, merge.input(index));
        }
        consumer.pause(inputs());
        placeQueues();
    }

    /**
     * A place in the midst of an order record says how many of its inputs are done, not which: so the record is read
     * first, and the queues begin behind what is done.
     */
    private void placeQueues() {
        peek();
        if (placed || !merge.settled()) {
            return;
        }
        for (int index = 0; index < queues.size(); index++) {
            queues.get(index).seek(merge.input(index));
        }
        placed = true;
    }

    /** The queue of the next input; a cut that begins here may bring new ones. */
    private int peek() {
        int from = merge.peek();
        if (merge.queues() > queues.size()) {
            admit();
        }
        return from;
    }

    private void admit() {
        int known = queues.size();
        if (merge.queues() == known) {
            return;
        }
        for (int index = known; index < merge.queues(); index++) {
            OrderRecord.Queue added = merge.added(index);
            queues.add(new QueueBuffer(consumer, new TopicPartition(added.topic(), added.partition())));
        }
        assign();
        for (int index = known; index < queues.size(); index++) {
            consumer.seek(queues.get(index).partition, merge.input(index));
            if (!placed) {
                consumer.pause(List.of(queues.get(index).partition));
            }
        }
    }

    /** A consumer keeps the positions, pauses and records of the partitions that it had before. */
    private void assign() {
        List<TopicPartition> partitions = new ArrayList<>(inputs());
        partitions.add(order);
        consumer.assign(partitions);
    }

    private List<TopicPartition> inputs() {
        return queues.stream().map(queue -> queue.partition).toList();
    }

    private void poll(long patienceMs) {
        if (orderPaused && merge.waiting() < MOST_ORDERS / 2) {
            orderPaused = false;
            consumer.resume(List.of(order));
        }
        ConsumerRecords<byte[], byte[]> records = fetch(patienceMs);
        for (ConsumerRecord<byte[], byte[]> record : records.records(order)) {
            merge.follow(record.offset(), OrderRecord.decode(record.value()));
        }
        placeQueues();
        if (merge.waiting() >= MOST_ORDERS) {
            orderPaused = true;
            consumer.pause(List.of(order));
        }
        for (QueueBuffer queue : queues) {
            queue.add(records.records(queue.partition));
        }
        report();
    }

    @Override
    void report() {
        Progress.read(group.reported(), shard, merge.upcoming(), QueueBuffer.behind(queues));
    }

    private static List<TopicPartition> everything(Shard shard) {
        List<TopicPartition> partitions = new ArrayList<>(shard.queues());
        partitions.add(shard.group().order(shard.shard()));
        return partitions;
    }
}
