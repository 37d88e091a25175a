package io.lockstep.sink;

import io.lockstep.LockstepException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;

/** Writes the rows of one task in one batch, and numbers them. */
final class OutputWriter implements DataWriter<InternalRow> {
    private record Done() implements WriterCommitMessage {}

    /** The last row of a shard in this task. */
    private static final class Last {
        long sn = -1;
        int k;
    }

    /** Where the columns are in a row, and where rows go. Sent to executors. */
    record Factory(
            String topic,
            int partitions,
            String site,
            String lastWords,
            boolean realTime,
            int key,
            int value,
            int sn,
            int shard,
            boolean stage,
            Map<String, Object> kafka)
            implements StreamingDataWriterFactory {
        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
            return new OutputWriter(this, partition, epoch);
        }
    }

    private static final byte[] NO_KEY = {};

    private final Factory to;
    private final int reducer;
    private final long batch;
    private final byte[] site;
    private final OutputProducer producer;
    private final Map<Integer, Last> lasts = new HashMap<>();
    private int ordinal;

    private OutputWriter(Factory to, int reducer, long batch) {
        this.to = to;
        this.reducer = reducer;
        this.batch = batch;
        this.site = to.site().getBytes(StandardCharsets.UTF_8);
        this.producer = OutputProducer.get(to.kafka(), to.lastWords());
    }

    @Override
    public void write(InternalRow row) {
        byte[] key = to.key() < 0 || row.isNullAt(to.key()) ? null : row.getBinary(to.key());
        byte[] value = row.isNullAt(to.value()) ? null : row.getBinary(to.value());
        byte[] identity = to.realTime() ? realTimeIdentity(row) : batchIdentity();
        // A stage that groups by the key needs all rows of one key in one partition, also those that have none.
        byte[] placed = key == null && to.stage() ? NO_KEY : key;
        int partition = Identity.partition(placed, identity, to.partitions());
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(to.topic(), partition, key, value);
        record.headers().add(Identity.HEADER, identity).add(Identity.SITE_HEADER, site);
        producer.send(record);
    }

    @Override
    public WriterCommitMessage commit() {
        producer.flush();
        return new Done();
    }

    @Override
    public void abort() {}

    @Override
    public void close() {}

    private byte[] batchIdentity() {
        return Identity.encode(Identity.MICROBATCH, Identity.NO_SHARD, reducer, batch, ordinal++);
    }

    private byte[] realTimeIdentity(InternalRow row) {
        if (row.isNullAt(to.sn()) || row.isNullAt(to.shard())) {
            throw new LockstepException(
                    "an output row has no _sn or no _shard",
                    "carry the columns of the input row that caused it; in an aggregation use max()");
        }
        long sn = row.getLong(to.sn());
        int shard = row.getInt(to.shard());
        Last last = lasts.computeIfAbsent(shard, first -> new Last());
        if (sn < last.sn) {
            // Readers would take this row for one they have seen, and drop it.
            throw new LockstepException(
                    "_sn of shard " + shard + " went back from " + last.sn + " to " + sn + " in the output",
                    "an output's _sn must be that of the row that caused it, and a key's rows must come from one"
                            + " partition: use max(_sn), and the message key as the key of the aggregation");
        }
        last.k = sn == last.sn ? last.k + 1 : 0;
        last.sn = sn;
        return Identity.encode(Identity.REALTIME, shard, reducer, sn, last.k);
    }
}
