package io.lockstep.source;

import io.lockstep.LockstepException;
import io.lockstep.Progress;
import io.lockstep.Suspect;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.TaskFailureListener;

/** Reads one shard within one batch, in both engines. */
final class ShardReader implements SupportsRealTimeRead<InternalRow> {
    private static final RecordStatus SOME = RecordStatus.newStatusWithoutArrivalTime(true);
    private static final RecordStatus NONE = RecordStatus.newStatusWithoutArrivalTime(false);
    private static final long POLL_MS = 100;
    private static final int KEY = 0;
    private static final int TOPIC = 2;
    private static final int PARTITION = 3;
    private static final int OFFSET = 4;
    private static final String BATCH_ID = "streaming.sql.batchId";
    private static final String QUERY_ID = "sql.streaming.queryId";

    /** Sent to executors. */
    static final class Factory implements PartitionReaderFactory {
        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            return new ShardReader((Shard) partition);
        }
    }

    private final Shard shard;
    private final Map<String, UTF8String> topics = new HashMap<>();
    private final Sequence sequence;
    private final Stage stage;
    private boolean failed;
    private InternalRow row;

    ShardReader(Shard shard) {
        this.shard = shard;
        String batch = TaskContext.get().getLocalProperty(BATCH_ID);
        if (shard.seal() != Position.NO_SEAL && !Integer.toString(shard.seal()).equals(batch)) {
            throw new LockstepException(
                    "Spark's batch " + batch + " was to read sealed batch " + shard.seal(),
                    "the checkpoint was made by another run, or noDataMicroBatches is on: start a new run");
        }
        Progress.batchBegan(TaskContext.get().getLocalProperty(QUERY_ID), Long.parseLong(batch));
        shard.group().topics().forEach(topic -> topics.put(topic, UTF8String.fromString(topic)));
        this.stage = new Stage(shard);
        this.sequence = Sequence.take(shard);
        TaskContext.get().addTaskFailureListener((TaskFailureListener) (context, error) -> suspect(error));
    }

    @Override
    public boolean next() {
        while (!sequence.reached(shard.until())) {
            if (advance(POLL_MS)) {
                return true;
            }
        }
        row = null;
        stage.ended();
        sequence.report();
        return false;
    }

    @Override
    public RecordStatus nextWithTimeout(Long timeoutMs) {
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
        long left = timeoutMs;
        do {
            if (advance(Math.min(left, POLL_MS))) {
                return SOME;
            }
            left = (deadline - System.nanoTime()) / 1_000_000;
        } while (left > 0);
        return NONE;
    }

    @Override
    public PartitionOffset getOffset() {
        return new ShardPosition(shard.shard(), stage.place(sequence.place()));
    }

    @Override
    public InternalRow get() {
        return row;
    }

    @Override
    public void close() {
        if (failed) {
            sequence.discard();
        } else {
            sequence.putBack();
        }
    }

    private void suspect(Throwable error) {
        if (!failed && row != null && !Suspect.isOurs(error)) {
            Suspect.accuse(row.getString(TOPIC), row.getInt(PARTITION), row.getLong(OFFSET), error);
        }
    }

    private boolean advance(long patienceMs) {
        row = null; // it is done with; what fails after the last one, in an aggregate's result, has none in hand
        try {
            ConsumerRecord<byte[], byte[]> record = sequence.next(shard.until(), patienceMs);
            if (record == null || skipped(record) || !stage.accepts(record)) {
                return false;
            }
            row = row(record);
        } catch (RuntimeException error) {
            failed = true;
            throw error;
        }
        requireKey();
        return true;
    }

    /** Kafka spreads records without a key over all partitions. In a stage topic they are in one: see OutputWriter. */
    private void requireKey() {
        if (shard.keyed() && row.isNullAt(KEY) && !shard.group().deduplicated(row.getString(TOPIC))) {
            throw new LockstepException(
                    "the record of " + row.getString(TOPIC) + "-" + row.getInt(PARTITION) + " at offset "
                            + row.getLong(OFFSET) + " has no key, and the pipeline groups by it",
                    "produce it with one, group by _shard too, or let a stage give it one");
        }
    }

    private boolean skipped(ConsumerRecord<byte[], byte[]> record) {
        if (shard.skips().isEmpty()) {
            return false;
        }
        TopicPartition queue = new TopicPartition(record.topic(), record.partition());
        return shard.skips().getOrDefault(queue, Set.of()).contains(record.offset());
    }

    private InternalRow row(ConsumerRecord<byte[], byte[]> record) {
        return new GenericInternalRow(new Object[] {
            record.key(),
            record.value(),
            topics.get(record.topic()),
            record.partition(),
            record.offset(),
            record.timestamp() * 1_000,
            record.timestampType().id,
            headers(record),
            shard.shard(),
            sequence.sn,
        });
    }

    private static GenericArrayData headers(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(new GenericInternalRow(
                    new Object[] {UTF8String.fromString(header.key()), header.value()}));
        }
        return headers.isEmpty() ? null : new GenericArrayData(headers.toArray());
    }
}
