package io.lockstep.source;

import io.lockstep.LockstepException;
import io.lockstep.order.InBandPlace;
import io.lockstep.order.MergePlace;
import io.lockstep.order.OrderRecord;
import io.lockstep.order.Place;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.function.ToIntFunction;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;

/**
 * One input of a pipeline: a topic alone, or several that are merged into one order, written {@code a+b~+c!+d~!}. Shard n
 * reads partition n of each topic, and of a broadcast one (with {@code !}) all partitions. A stage topic (with
 * {@code ~}) is written by all sites and deduplicated here. The Python twin is {@code lockstep.spark.inputs}.
 *
 * @param orderTopic holds the order, one partition per shard; empty for a topic alone, whose offsets are its order;
 *     {@link #IN_BAND} where the queues hold heartbeats among their events
 * @param orderBase the partition of the first shard
 */
record Group(String name, List<Member> members, String orderTopic, int orderBase) implements Serializable {
    private static final String IN_BAND = "*";

    record Member(String topic, boolean broadcast, boolean stage) implements Serializable {}

    /** @param order {@code topic:partition of the first shard}, or empty */
    static Group parse(String name, String order) {
        List<Member> members = new ArrayList<>();
        for (String part : name.split("\\+")) {
            boolean broadcast = part.endsWith("!");
            String rest = broadcast ? part.substring(0, part.length() - 1) : part;
            boolean stage = rest.endsWith("~");
            members.add(new Member(stage ? rest.substring(0, rest.length() - 1) : rest, broadcast, stage));
        }
        if (order.isEmpty() && (members.size() > 1 || members.get(0).broadcast())) {
            throw new LockstepException(
                    "input " + name + " has several queues and no order", "use order liverobin or kazoo");
        }
        int colon = order.lastIndexOf(':');
        return colon < 0
                ? new Group(name, List.copyOf(members), order, 0)
                : new Group(
                        name,
                        List.copyOf(members),
                        order.substring(0, colon),
                        Integer.parseInt(order.substring(colon + 1)));
    }

    /** The groups of a query: names and order topics, both separated by commas. */
    static List<Group> parseAll(String names, String orderTopics) {
        String[] every = names.split(",");
        String[] topics = orderTopics.split(",", -1);
        List<Group> groups = new ArrayList<>();
        for (int index = 0; index < every.length; index++) {
            groups.add(parse(every[index], index < topics.length ? topics[index] : ""));
        }
        return groups;
    }

    boolean merged() {
        return !orderTopic.isEmpty();
    }

    boolean inBand() {
        return orderTopic.equals(IN_BAND);
    }

    /** The name under which its progress is reported: a topic alone under its own. */
    String reported() {
        return merged() ? name : members.get(0).topic();
    }

    /** The partition of the order topic that a shard follows. */
    TopicPartition order(int shard) {
        return new TopicPartition(orderTopic, orderBase + shard);
    }

    boolean deduplicated(String topic) {
        return members.stream().anyMatch(member -> member.stage() && member.topic().equals(topic));
    }

    List<String> topics() {
        return members.stream().map(Member::topic).toList();
    }

    /** How many shards there are: partitions of the topics that are not broadcast, which all have as many. */
    int shards(ToIntFunction<String> partitions) {
        int shards = 0;
        for (Member member : members) {
            int count = partitions.applyAsInt(member.topic());
            if (!member.broadcast() && shards != 0 && count != shards) {
                throw new LockstepException(
                        "the topics of input " + name + " have different numbers of partitions: " + count + " and " + shards,
                        "give them the same number, keyed alike, or declare one as broadcast");
            }
            shards = member.broadcast() ? shards : count;
        }
        return Math.max(1, shards);
    }

    /** The queues of a shard, in the order of their numbers. */
    List<TopicPartition> queues(int shard, ToIntFunction<String> partitions) {
        List<TopicPartition> queues = new ArrayList<>();
        for (Member member : members) {
            int count = partitions.applyAsInt(member.topic());
            for (int partition = 0; partition < count; partition++) {
                if (member.broadcast() || partition == shard) {
                    queues.add(new TopicPartition(member.topic(), partition));
                }
            }
        }
        return queues;
    }

    /**
     * Of the queues that the run began with, those whose topics may grow under LiveRobin: with one shard all records pass
     * through it, so a key that moves to a new partition keeps one order.
     */
    Set<OrderRecord.Queue> growing(ToIntFunction<String> partitions) {
        if (!merged() || shards(partitions) != 1) {
            return Set.of();
        }
        return members.stream()
                .filter(member -> !member.broadcast() && !member.stage())
                .map(member -> new OrderRecord.Queue(member.topic(), 0))
                .collect(Collectors.toUnmodifiableSet());
    }

    /** Where a shard begins whose queues begin at {@code origin}. */
    Place start(long[] origin) {
        if (inBand()) {
            return InBandPlace.start(origin);
        }
        return merged() ? MergePlace.start(origin) : new Place.Offset(origin[0]);
    }
}
