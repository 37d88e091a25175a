package io.lockstep.source;

import io.lockstep.LockstepException;
import io.lockstep.Progress;
import io.lockstep.Settings;
import io.lockstep.order.Place;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;

/**
 * One input of a pipeline as a Spark stream: a topic alone, whose partitions are its shards and whose offsets are
 * their order, or several topics that are merged as an order topic says.
 *
 * <p>Real time: a batch is whatever came before the clock ended it, and its outputs do not depend on where that
 * was. Micro-batch: batch n is exactly the nth sealed span (design rule 11), for that its outputs do depend on.
 */
public final class ShardStream implements MicroBatchStream, SupportsAdmissionControl, SupportsRealTimeMode {
    private static final String PARTITION = "partition";
    private static final String IN_BAND = "inband";

    private final Group group;
    private final String order;
    private final String source;
    private final Map<String, Object> kafka;
    private final boolean keyed;
    private final SealTopic run;
    private boolean realTime;

    /** @param checkpoint where Spark lets this source keep its own data: unique to it, below the query's folder */
    public ShardStream(Settings settings, String checkpoint) {
        group = Group.parse(settings.required("topic"), settings.text("orderTopic", ""));
        order = settings.text("order", PARTITION);
        if (!List.of(PARTITION, "liverobin", "kazoo", IN_BAND).contains(order)) {
            throw new LockstepException(
                    "this source cannot follow order \"" + order + "\"", "use partition, liverobin, kazoo or inband");
        }
        if (!settings.flag("failOnDataLoss", true)) {
            throw new LockstepException(
                    "failOnDataLoss=false would let sites skip different records", "remove the option");
        }
        kafka = settings.kafka();
        keyed = settings.flag("keyed", false);
        source = checkpoint;
        run = SealTopic.open(settings, checkpoint.replaceFirst("/sources/[^/]*$", ""));
        try {
            look();
            verify();
        } catch (RuntimeException error) {
            run.close();
            throw error;
        }
        Progress.expect(group.reported());
    }

    @Override
    public void prepareForRealTimeMode() {
        realTime = true;
    }

    @Override
    public Offset initialOffset() {
        return position(Position.NO_SEAL, run.end(group, Position.NO_SEAL));
    }

    @Override
    public Offset deserializeOffset(String json) {
        int[] queues = new int[run.shards(group)];
        for (int shard = 0; shard < queues.length; shard++) {
            queues[shard] = run.queues(group, shard).size();
        }
        return Position.parse(json, group.name(), order, group.merged(), queues);
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a start and a limit");
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        if (realTime) {
            look();
            return start;
        }
        if (group.inBand()) {
            throw new LockstepException(
                    "a batch of order inband has no end that is known before it is read", "use order liverobin");
        }
        int have = ((Position) start).seal;
        int number = run.admit(source, have);
        if (number == have) {
            return have == Position.NO_SEAL ? null : start; // Spark would run an empty first batch
        }
        look();
        return position(number, run.end(group, number));
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start) {
        verify();
        Place[] from = ((Position) start).next;
        InputPartition[] partitions = new InputPartition[from.length];
        for (int shard = 0; shard < partitions.length; shard++) {
            partitions[shard] = shard(shard, Position.NO_SEAL, from[shard], null);
        }
        return partitions;
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        verify();
        // A shard without new records has a task too: the number of a task is part of an output's identity.
        Place[] from = ((Position) start).next;
        Position until = (Position) end;
        InputPartition[] partitions = new InputPartition[from.length];
        for (int shard = 0; shard < partitions.length; shard++) {
            partitions[shard] = shard(shard, until.seal, from[shard], until.next[shard]);
        }
        return partitions;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ShardReader.Factory();
    }

    @Override
    public Offset mergeOffsets(PartitionOffset[] offsets) {
        Place[] next = new Place[offsets.length];
        for (PartitionOffset offset : offsets) {
            ShardPosition position = (ShardPosition) offset;
            next[position.shard()] = position.place();
        }
        return position(Position.NO_SEAL, next);
    }

    @Override
    public void commit(Offset end) {}

    @Override
    public void stop() {
        run.close();
        Sequence.forget(source);
        Progress.forget(group.reported());
    }

    @Override
    public String toString() {
        return "lockstep[" + group.name() + "]";
    }

    private void look() {
        group.topics().forEach(run::look);
    }

    private void verify() {
        group.topics().forEach(topic -> run.verify(group, topic));
    }

    private Position position(int seal, Place[] next) {
        return new Position(group.name(), order, seal, next);
    }

    private Shard shard(int shard, int seal, Place from, Place until) {
        List<TopicPartition> queues = run.queues(group, shard);
        Map<TopicPartition, Set<Long>> skips = new HashMap<>();
        for (String topic : group.topics()) {
            run.skips(topic).forEach((partition, offsets) -> skips.put(new TopicPartition(topic, partition), offsets));
        }
        return new Shard(
                source, group, shard, List.copyOf(queues), run.growing(group), seal, from, until, kafka, skips, keyed);
    }
}
