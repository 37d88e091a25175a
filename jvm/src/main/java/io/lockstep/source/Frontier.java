package io.lockstep.source;

import io.lockstep.order.Merge;
import io.lockstep.order.MergePlace;
import io.lockstep.order.OrderRecord;
import io.lockstep.order.Place;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * How far an order topic reaches, as places that a seal can name: follows the order without the data. Any site that
 * proposes a seal at the same point of the order finds the same place.
 */
final class Frontier implements AutoCloseable {
    private static final Duration POLL = Duration.ofMillis(100);

    private record Read(long offset, OrderRecord record) {}

    private final Map<String, Object> kafka;
    private final Group group;
    private final Set<OrderRecord.Queue> growing;
    private KafkaConsumer<byte[], byte[]> consumer;
    private List<ArrayDeque<Read>> sinceSeal;

    Frontier(Map<String, Object> kafka, Group group, Set<OrderRecord.Queue> growing) {
        this.kafka = kafka;
        this.group = group;
        this.growing = growing;
    }

    /** The last place of each shard that the order reaches now, at most so many inputs after {@code from}. */
    Place[] ends(Place[] from, long most) {
        if (consumer == null) {
            open(from);
        }
        readToEnd();
        Place[] ends = new Place[from.length];
        for (int shard = 0; shard < ends.length; shard++) {
            ends[shard] = end((MergePlace) from[shard], sinceSeal.get(shard), most);
        }
        return ends;
    }

    @Override
    public void close() {
        if (consumer != null) {
            consumer.close(Duration.ofSeconds(1));
        }
    }

    private void readToEnd() {
        Map<TopicPartition, Long> ends = consumer.endOffsets(consumer.assignment(), Topics.PATIENCE);
        while (ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                sinceSeal
                        .get(record.partition() - group.orderBase())
                        .add(new Read(record.offset(), OrderRecord.decode(record.value())));
            }
        }
    }

    private Place end(MergePlace from, ArrayDeque<Read> reads, long most) {
        while (!reads.isEmpty() && reads.peek().offset() < from.orderOffset()) {
            reads.poll();
        }
        Merge merge = new Merge(from, growing);
        for (Read read : reads) {
            merge.follow(read.offset(), read.record());
        }
        for (long taken = 0; taken < most && merge.peek() >= 0; taken++) {
            merge.take();
        }
        return merge.place();
    }

    private void open(Place[] from) {
        List<TopicPartition> partitions = new ArrayList<>();
        sinceSeal = new ArrayList<>();
        for (int shard = 0; shard < from.length; shard++) {
            partitions.add(group.order(shard));
            sinceSeal.add(new ArrayDeque<>());
        }
        consumer = Consumers.of(kafka, partitions);
        for (TopicPartition partition : partitions) {
            consumer.seek(partition, ((MergePlace) from[partition.partition() - group.orderBase()]).orderOffset());
        }
    }
}
