package io.lockstep.source;

import io.lockstep.LockstepException;
import io.lockstep.Progress;
import io.lockstep.Settings;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;

/**
 * One input topic as a Spark stream under order {@code partition}: each Kafka partition is a shard, and its
 * offset is the position.
 *
 * <p>Real time: a batch is whatever came before the clock ended it, and its outputs do not depend on where that
 * was. Micro-batch: batch n is exactly the nth sealed span (design rule 11), for that its outputs do depend on.
 */
public final class ShardStream implements MicroBatchStream, SupportsAdmissionControl, SupportsRealTimeMode {
    private final String topic;
    private final String source;
    private final Map<String, Object> kafka;
    private final SealTopic run;
    private boolean realTime;

    /** @param checkpoint where Spark lets this source keep its own data: unique to it, below the query's folder */
    public ShardStream(Settings settings, String checkpoint) {
        topic = settings.required("topic");
        if (!Position.ORDER.equals(settings.text("order", Position.ORDER))) {
            throw new LockstepException(
                    "this source cannot follow order \"" + settings.text("order", "") + "\"", "use order partition");
        }
        if (!settings.flag("failOnDataLoss", true)) {
            throw new LockstepException(
                    "failOnDataLoss=false would let sites skip different records", "remove the option");
        }
        kafka = settings.kafka();
        source = checkpoint;
        run = SealTopic.open(settings, checkpoint.replaceFirst("/sources/[^/]*$", ""));
        try {
            run.look(topic);
            run.verify(topic);
        } catch (RuntimeException error) {
            run.close();
            throw error;
        }
    }

    @Override
    public void prepareForRealTimeMode() {
        realTime = true;
    }

    @Override
    public Offset initialOffset() {
        return new Position(topic, Position.NO_SEAL, run.end(topic, Position.NO_SEAL));
    }

    @Override
    public Offset deserializeOffset(String json) {
        return Position.parse(json, topic, shards());
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a start and a limit");
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        if (realTime) {
            run.look(topic);
            return start;
        }
        int have = ((Position) start).seal;
        int number = run.admit(source, have);
        if (number == have) {
            return have == Position.NO_SEAL ? null : start; // Spark would run an empty first batch
        }
        run.look(topic);
        return new Position(topic, number, run.end(topic, number));
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start) {
        run.verify(topic);
        InputPartition[] partitions = new InputPartition[shards()];
        for (int shard = 0; shard < partitions.length; shard++) {
            partitions[shard] = shard(shard, Position.NO_SEAL, ((Position) start).next[shard], Shard.NO_END);
        }
        return partitions;
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        run.verify(topic);
        // A shard without new records has a task too: the number of a task is part of an output's identity.
        InputPartition[] partitions = new InputPartition[shards()];
        for (int shard = 0; shard < partitions.length; shard++) {
            Position until = (Position) end;
            partitions[shard] = shard(shard, until.seal, ((Position) start).next[shard], until.next[shard]);
        }
        return partitions;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ShardReader.Factory();
    }

    @Override
    public Offset mergeOffsets(PartitionOffset[] offsets) {
        long[] next = new long[shards()];
        for (PartitionOffset offset : offsets) {
            ShardPosition position = (ShardPosition) offset;
            next[position.shard()] = position.next();
        }
        return new Position(topic, Position.NO_SEAL, next);
    }

    @Override
    public void commit(Offset end) {}

    @Override
    public void stop() {
        run.close();
        ShardConsumer.forget(source);
        Progress.forget(topic);
    }

    @Override
    public String toString() {
        return "lockstep[" + topic + "]";
    }

    private int shards() {
        return run.input(topic).origin().length;
    }

    private Shard shard(int shard, int seal, long from, long until) {
        return new Shard(source, topic, shard, seal, from, until, kafka, run.skips(topic, shard));
    }
}
