package io.lockstep.source;

import io.lockstep.LockstepException;
import io.lockstep.Progress;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * One shard's Kafka consumer with what it has fetched, kept from batch to batch: a new one would cost tens of
 * milliseconds at every boundary. What it holds is bounded by Kafka's fetch sizes.
 *
 * <p>A task takes it out of the pool and puts it back, so one thread at a time uses it.
 */
final class ShardConsumer {
    private static final Map<String, ShardConsumer> POOL = new ConcurrentHashMap<>();
    private static final int MOST_POOLED = 1_000;

    private final String key;
    private final TopicPartition partition;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private Iterator<ConsumerRecord<byte[], byte[]>> fetched = Collections.emptyIterator();
    private ConsumerRecord<byte[], byte[]> held; // fetched, but of a later batch
    private long at = -1;

    static ShardConsumer take(Shard shard) {
        String key = shard.reader() + "\n" + shard.topic() + "\n" + shard.shard();
        ShardConsumer pooled = POOL.remove(key);
        ShardConsumer consumer = pooled == null ? new ShardConsumer(key, shard) : pooled;
        consumer.seek(shard.from());
        return consumer;
    }

    void putBack() {
        if (POOL.size() >= MOST_POOLED || POOL.putIfAbsent(key, this) != null) {
            discard();
        }
    }

    void discard() {
        consumer.close(Duration.ofSeconds(1));
    }

    /** Close what a query that ended left in the pool. */
    static void forget(String reader) {
        POOL.keySet().stream().filter(key -> key.startsWith(reader + "\n")).toList().forEach(key -> {
            ShardConsumer consumer = POOL.remove(key);
            if (consumer != null) {
                consumer.discard();
            }
        });
    }

    private ShardConsumer(String key, Shard shard) {
        this.key = key;
        this.partition = new TopicPartition(shard.topic(), shard.shard());
        Map<String, Object> kafka = new HashMap<>(shard.kafka());
        kafka.put("enable.auto.commit", "false");
        kafka.put("auto.offset.reset", "none"); // a jump would be a silent loss
        kafka.remove("group.id");
        kafka.putIfAbsent("max.poll.records", "2000");
        consumer = new KafkaConsumer<>(kafka, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.assign(List.of(partition));
    }

    /** The offset of the next record: all before it were returned, or do not exist. */
    long at() {
        return at;
    }

    /**
     * The next record below {@code until}, or null when there is none within {@code patienceMs}. Null too when
     * the consumer's position has passed {@code until}: markers and compaction leave holes.
     */
    ConsumerRecord<byte[], byte[]> next(long until, long patienceMs) {
        if (at >= until) {
            return null;
        }
        if (held == null) {
            if (!fetched.hasNext()) {
                fetch(patienceMs);
            }
            if (!fetched.hasNext()) {
                return null;
            }
            held = fetched.next();
        }
        if (held.offset() >= until) {
            at = until;
            return null;
        }
        ConsumerRecord<byte[], byte[]> record = held;
        held = null;
        at = record.offset() + 1;
        return record;
    }

    private void fetch(long patienceMs) {
        try {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(patienceMs));
            if (records.isEmpty()) {
                at = Math.max(at, consumer.position(partition));
            }
            fetched = records.iterator();
            long behind = consumer.currentLag(partition).orElse(0) + records.count();
            Progress.read(partition.topic(), partition.partition(), at, behind);
        } catch (OffsetOutOfRangeException error) {
            throw outOfRange(error);
        }
    }

    private void seek(long from) {
        if (at != from) {
            fetched = Collections.emptyIterator();
            held = null;
            consumer.seek(partition, from);
            at = from;
        }
    }

    private LockstepException outOfRange(OffsetOutOfRangeException error) {
        Duration patience = Duration.ofSeconds(10);
        long first = consumer.beginningOffsets(List.of(partition), patience).get(partition);
        long end = consumer.endOffsets(List.of(partition), patience).get(partition);
        String what = "partition " + partition.partition() + " of topic \"" + partition.topic() + "\" has offsets "
                + first + " to " + end + ", this site needs " + at;
        return first > at
                ? new LockstepException(
                        what + ": retention has removed " + (first - at) + " records that were not processed",
                        "take a checkpoint of a site that is ahead, or start a new run; lengthen retention.ms",
                        error)
                : new LockstepException(
                        what + ": the log lost records that were there",
                        "restore the topic, or start a new run under another name",
                        error);
    }
}
