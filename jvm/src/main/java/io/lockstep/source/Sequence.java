package io.lockstep.source;

import io.lockstep.order.Place;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;

/**
 * The records of one shard in their order, with the Kafka consumer that fetches them, kept from batch to batch: a
 * new consumer would cost tens of milliseconds at every boundary.
 *
 * <p>A task takes it out of the pool and puts it back, so one thread at a time uses it.
 */
abstract class Sequence {
    private static final Map<String, Sequence> POOL = new ConcurrentHashMap<>();
    private static final int MOST_POOLED = 1_000;

    private final String key;
    final KafkaConsumer<byte[], byte[]> consumer;

    /** The number of the record that {@link #next} returned last. */
    long sn;

    Sequence(String key, KafkaConsumer<byte[], byte[]> consumer) {
        this.key = key;
        this.consumer = consumer;
    }

    static Sequence take(Shard shard) {
        Sequence pooled = POOL.remove(shard.key());
        Sequence sequence = pooled != null ? pooled : open(shard);
        sequence.seek(shard.from() instanceof Place.Deduplicated place ? place.at() : shard.from());
        return sequence;
    }

    private static Sequence open(Shard shard) {
        if (shard.group().inBand()) {
            return new InBandSequence(shard);
        }
        return shard.group().merged() ? new MergedSequence(shard) : new PartitionSequence(shard);
    }

    /**
     * The next record before {@code until} (null: no end), or null when there is none within {@code patienceMs}, or
     * none any more: see {@link #reached}.
     */
    abstract ConsumerRecord<byte[], byte[]> next(Place until, long patienceMs);

    /** Where the next record is: all before it were returned, or do not exist. */
    abstract Place place();

    /** The number of the next record, as {@link #place} has it. */
    abstract long upcoming();

    /** Whether everything before {@code until} was returned. */
    final boolean reached(Place until) {
        return until != null && upcoming() >= until.upcoming();
    }

    abstract void seek(Place from);

    /** Tell {@link io.lockstep.Progress} where the next record is, and how many there are. */
    abstract void report();

    final ConsumerRecords<byte[], byte[]> fetch(long patienceMs) {
        try {
            return consumer.poll(Duration.ofMillis(patienceMs));
        } catch (OffsetOutOfRangeException error) {
            throw Consumers.outOfRange(consumer, error);
        }
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
            Sequence sequence = POOL.remove(key);
            if (sequence != null) {
                sequence.discard();
            }
        });
    }
}
