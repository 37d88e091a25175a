package io.lockstep.source;

import io.lockstep.Progress;
import io.lockstep.order.Merge;
import io.lockstep.order.MergePlace;
import io.lockstep.order.OrderRecord;
import io.lockstep.order.Place;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.TopicPartition;

/**
 * Several queues in the order that an order topic gives: {@link Merge} says which queue is next, this fetches.
 *
 * <p>One consumer reads the order and the queues, so that one poll wakes up for any of them. A queue that has more in
 * hand than it needs is paused: memory does not grow with a backlog, and the queue that is waited for is never the
 * paused one.
 *
 * <p>A queue that a cut adds is assigned to the consumer when the merge begins that cut; what the consumer has of the
 * others, their positions and which of them are paused stay as they are.
 */
final class MergedSequence extends Sequence {
    private static final int MOST_RECORDS = 8_000;
    private static final long MOST_BYTES = 4 << 20;
    private static final int MOST_ORDERS = 2_000;

    private static final class Queue {
        final TopicPartition partition;
        final ArrayDeque<ConsumerRecord<byte[], byte[]>> records = new ArrayDeque<>();
        long bytes;
        boolean paused;

        Queue(TopicPartition partition) {
            this.partition = partition;
        }

        boolean full() {
            return records.size() >= MOST_RECORDS || bytes >= MOST_BYTES;
        }

        boolean low() {
            return records.size() < MOST_RECORDS / 2 && bytes < MOST_BYTES / 2;
        }
    }

    private final Group group;
    private final int shard;
    private final TopicPartition order;
    private final Set<OrderRecord.Queue> growing;
    private final List<Queue> queues = new ArrayList<>();
    private boolean orderPaused;
    private boolean placed;
    private Merge merge;
    private long sn;

    MergedSequence(Shard shard) {
        super(shard.key(), Consumers.of(shard.kafka(), everything(shard)));
        this.group = shard.group();
        this.shard = shard.shard();
        this.order = shard.group().order(shard.shard());
        this.growing = shard.growing();
        shard.queues().forEach(partition -> queues.add(new Queue(partition)));
    }

    @Override
    ConsumerRecord<byte[], byte[]> next(Place until, long patienceMs) {
        boolean polled = false;
        while (!reached(until)) {
            int from = peek();
            if (placed && from >= 0) {
                Queue queue = queues.get(from);
                long wanted = merge.offset();
                ConsumerRecord<byte[], byte[]> head = queue.records.peek();
                if (head != null || consumer.position(queue.partition) > wanted) {
                    sn = merge.upcoming();
                    boolean counts = merge.take();
                    if (head == null || head.offset() > wanted) {
                        continue; // a hole: markers and compaction leave them
                    }
                    take(queue);
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
    long sn() {
        return sn;
    }

    @Override
    Place place() {
        return merge.place();
    }

    @Override
    boolean reached(Place until) {
        return until != null && merge.upcoming() >= until.upcoming();
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
            Queue queue = queues.get(index);
            queue.records.clear();
            queue.bytes = 0;
            queue.paused = false;
            consumer.seek(queue.partition, merge.input(index));
        }
        consumer.resume(inputs());
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
            queues.add(new Queue(new TopicPartition(added.topic(), added.partition())));
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

    private void take(Queue queue) {
        ConsumerRecord<byte[], byte[]> record = queue.records.poll();
        queue.bytes -= size(record);
        if (queue.paused && queue.low()) {
            queue.paused = false;
            consumer.resume(List.of(queue.partition));
        }
    }

    private void poll(long patienceMs) {
        if (orderPaused && merge.waiting() < MOST_ORDERS / 2) {
            orderPaused = false;
            consumer.resume(List.of(order));
        }
        ConsumerRecords<byte[], byte[]> records;
        try {
            records = consumer.poll(Duration.ofMillis(patienceMs));
        } catch (OffsetOutOfRangeException error) {
            throw Consumers.outOfRange(consumer, error);
        }
        for (ConsumerRecord<byte[], byte[]> record : records.records(order)) {
            merge.follow(record.offset(), OrderRecord.decode(record.value()));
        }
        placeQueues();
        if (merge.waiting() >= MOST_ORDERS) {
            orderPaused = true;
            consumer.pause(List.of(order));
        }
        for (Queue queue : queues) {
            for (ConsumerRecord<byte[], byte[]> record : records.records(queue.partition)) {
                queue.records.add(record);
                queue.bytes += size(record);
            }
            if (!queue.paused && queue.full()) {
                queue.paused = true;
                consumer.pause(List.of(queue.partition));
            }
        }
        report();
    }

    @Override
    void report() {
        long behind = 0;
        for (Queue queue : queues) {
            long more = behind(queue.partition);
            if (more < 0) {
                behind = -1;
                break;
            }
            behind += more + queue.records.size();
        }
        Progress.read(group.reported(), shard, merge.upcoming(), behind);
    }

    private static long size(ConsumerRecord<byte[], byte[]> record) {
        return 200L + Math.max(0, record.serializedKeySize()) + Math.max(0, record.serializedValueSize());
    }

    private static List<TopicPartition> everything(Shard shard) {
        List<TopicPartition> partitions = new ArrayList<>(shard.queues());
        partitions.add(shard.group().order(shard.shard()));
        return partitions;
    }
}
