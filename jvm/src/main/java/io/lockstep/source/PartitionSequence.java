package io.lockstep.source;

import io.lockstep.Progress;
import io.lockstep.order.Place;
import java.util.Collections;
import java.util.Iterator;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.common.TopicPartition;

/** Order {@code partition}: one queue, whose offsets are the order. What it holds is bounded by Kafka's fetch sizes. */
final class PartitionSequence extends Sequence {
    private final TopicPartition partition;
    private Iterator<ConsumerRecord<byte[], byte[]>> fetched = Collections.emptyIterator();
    private ConsumerRecord<byte[], byte[]> held; // fetched, but of a later batch
    private long at = -1;
    private long end = -1; // of the partition, as far as it is known

    PartitionSequence(Shard shard) {
        super(shard.key(), Consumers.of(shard.kafka(), shard.queues()));
        partition = shard.queues().get(0);
    }

    /** Null too when the consumer's position has passed {@code until}: markers and compaction leave holes. */
    @Override
    ConsumerRecord<byte[], byte[]> next(Place until, long patienceMs) {
        if (reached(until)) {
            return null;
        }
        if (held == null) {
            if (!fetched.hasNext()) {
                fetchMore(patienceMs);
            }
            if (!fetched.hasNext()) {
                return null;
            }
            held = fetched.next();
        }
        if (until != null && held.offset() >= until.upcoming()) {
            at = until.upcoming();
            return null;
        }
        ConsumerRecord<byte[], byte[]> record = held;
        held = null;
        sn = record.offset();
        at = sn + 1;
        return record;
    }

    @Override
    Place place() {
        return new Place.Offset(at);
    }

    @Override
    long upcoming() {
        return at;
    }

    @Override
    void seek(Place from) {
        if (at != from.upcoming()) {
            fetched = Collections.emptyIterator();
            held = null;
            at = from.upcoming();
            consumer.seek(partition, at);
        }
    }

    @Override
    void report() {
        Progress.read(partition.topic(), partition.partition(), at, end < 0 ? -1 : Math.max(0, end - at));
    }

    private void fetchMore(long patienceMs) {
        ConsumerRecords<byte[], byte[]> records = fetch(patienceMs);
        if (records.isEmpty()) {
            at = Math.max(at, consumer.position(partition));
        }
        fetched = records.iterator();
        long behind = consumer.currentLag(partition).orElse(-1);
        end = behind < 0 ? -1 : consumer.position(partition) + behind;
        report();
    }
}
