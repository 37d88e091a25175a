package io.lockstep.source;

import java.util.ArrayDeque;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * What was fetched of one queue and not taken yet. A queue that has more in hand than it needs is paused: memory does
 * not grow with a backlog, and the queue that is waited for is never the paused one.
 */
final class QueueBuffer {
    private static final int MOST_RECORDS = 8_000;
    private static final long MOST_BYTES = 4 << 20;

    final TopicPartition partition;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final ArrayDeque<ConsumerRecord<byte[], byte[]>> records = new ArrayDeque<>();
    private long bytes;
    private boolean paused;

    QueueBuffer(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition) {
        this.consumer = consumer;
        this.partition = partition;
    }

    ConsumerRecord<byte[], byte[]> peek() {
        return records.peek();
    }

    int size() {
        return records.size();
    }

    ConsumerRecord<byte[], byte[]> take() {
        ConsumerRecord<byte[], byte[]> record = records.poll();
        if (record == null) {
            return null;
        }
        bytes -= size(record);
        if (paused && records.size() < MOST_RECORDS / 2 && bytes < MOST_BYTES / 2) {
            paused = false;
            consumer.resume(List.of(partition));
        }
        return record;
    }

    void add(Iterable<ConsumerRecord<byte[], byte[]>> fetched) {
        for (ConsumerRecord<byte[], byte[]> record : fetched) {
            records.add(record);
            bytes += size(record);
        }
        if (!paused && (records.size() >= MOST_RECORDS || bytes >= MOST_BYTES)) {
            paused = true;
            consumer.pause(List.of(partition));
        }
    }

    /** Begin anew at this offset, not paused. */
    void seek(long offset) {
        records.clear();
        bytes = 0;
        paused = false;
        consumer.seek(partition, offset);
        consumer.resume(List.of(partition));
    }

    /** Records up to the end of the queue, or -1 as long as that is not known. */
    long behind() {
        long more = consumer.currentLag(partition).orElse(-1);
        return more < 0 ? -1 : more + records.size();
    }

    /** The same of several. */
    static long behind(Iterable<QueueBuffer> queues) {
        long sum = 0;
        for (QueueBuffer queue : queues) {
            long one = queue.behind();
            if (one < 0) {
                return -1;
            }
            sum += one;
        }
        return sum;
    }

    private static long size(ConsumerRecord<byte[], byte[]> record) {
        return 200L + Math.max(0, record.serializedKeySize()) + Math.max(0, record.serializedValueSize());
    }
}
