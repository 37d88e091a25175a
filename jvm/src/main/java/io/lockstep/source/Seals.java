package io.lockstep.source;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.lockstep.LockstepException;
import io.lockstep.Settings;
import io.lockstep.order.Place;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;

/**
 * What a run agreed on, read from its seals topic: a pure fold over the records in log order.
 *
 * <p>Any site may append; what counts depends on the topic's prefix alone, so all sites agree (design rule 1):
 * <ul>
 *   <li>the first <b>origin</b> says where the run begins and which topics it reads;
 *   <li>the first <b>seal</b> that carries the next number ends that micro-batch; its places are taken shard by
 *       shard as the later of it and the seal before, so a late or lagging proposer cannot turn a batch backwards;
 *   <li>a <b>skip</b> leaves one input record out for every reader that starts after it (rule 3).
 * </ul>
 * Everything else is void. It knows no Kafka and no clock.
 */
final class Seals {
    static final int VERSION = 1;

    /** An input topic as the run found it. */
    record Input(String id, long[] origin) {}

    private final List<Group> groups;
    private final Map<String, Input> inputs = new TreeMap<>();
    private final List<Map<String, Place[]>> seals = new ArrayList<>();
    private final Map<String, Map<Integer, Set<Long>>> skips = new HashMap<>();

    /** @param groups the inputs of the pipeline */
    Seals(List<Group> groups) {
        this.groups = groups;
    }

    /** Take one record of the topic; whether it counts. */
    boolean apply(JsonNode record) {
        if (record.path("version").asInt() != VERSION) {
            throw new LockstepException(
                    "the run's seals topic holds a record of version " + record.path("version"),
                    "all sites of a run need the same version of Lockstep");
        }
        return switch (record.path("kind").asText()) {
            case "origin" -> applyOrigin(record);
            case "seal" -> applySeal(record);
            case "skip" -> applySkip(record);
            default -> false;
        };
    }

    boolean begun() {
        return !inputs.isEmpty();
    }

    /** How many micro-batches are sealed. */
    int count() {
        return seals.size();
    }

    Map<String, Input> inputs() {
        return inputs;
    }

    Input input(String topic) {
        Input input = inputs.get(topic);
        if (input == null) {
            throw new LockstepException(
                    "this run does not read topic \"" + topic + "\", it began with " + inputs.keySet(),
                    "a changed pipeline is another run: start it under another name");
        }
        return input;
    }

    int partitions(String topic) {
        return input(topic).origin().length;
    }

    int shards(Group group) {
        return group.shards(this::partitions);
    }

    List<TopicPartition> queues(Group group, int shard) {
        return group.queues(shard, this::partitions);
    }

    /** Where micro-batch {@code number} ends; -1 is where the run begins. */
    Place[] end(Group group, int number) {
        if (number >= 0) {
            return seals.get(number).get(group.name());
        }
        Place[] starts = new Place[shards(group)];
        for (int shard = 0; shard < starts.length; shard++) {
            long[] origin = queues(group, shard).stream()
                    .mapToLong(one -> input(one.topic()).origin()[one.partition()])
                    .toArray();
            starts[shard] = group.start(origin);
        }
        return starts;
    }

    Set<Long> skips(String topic, int partition) {
        return skips(topic).getOrDefault(partition, Set.of());
    }

    /** By partition; also of partitions that were added since the run began. */
    Map<Integer, Set<Long>> skips(String topic) {
        Map<Integer, Set<Long>> found = new HashMap<>();
        skips.getOrDefault(topic, Map.of()).forEach((partition, offsets) -> found.put(partition, Set.copyOf(offsets)));
        return found;
    }

    private boolean applyOrigin(JsonNode record) {
        if (begun()) {
            return false;
        }
        record.path("inputs").properties().forEach(entry -> inputs.put(
                entry.getKey(),
                new Input(entry.getValue().path("id").asText(), positions(entry.getValue().path("positions")))));
        return begun();
    }

    private boolean applySeal(JsonNode record) {
        if (!begun() || record.path("number").asInt(-1) != count()) {
            return false;
        }
        Map<String, Place[]> ends = new HashMap<>();
        for (Group group : groups) {
            Place[] end = end(group, count() - 1).clone();
            JsonNode proposed = record.path("positions").path(group.name());
            for (int shard = 0; shard < end.length; shard++) {
                Place place = Place.parse(
                        proposed.path(Integer.toString(shard)), queues(group, shard).size(), group.merged());
                end[shard] = place == null ? end[shard] : end[shard].later(place);
            }
            ends.put(group.name(), end);
        }
        seals.add(ends);
        return true;
    }

    private boolean applySkip(JsonNode record) {
        return skips.computeIfAbsent(record.path("topic").asText(), topic -> new HashMap<>())
                .computeIfAbsent(record.path("shard").asInt(), shard -> new HashSet<>())
                .add(record.path("offset").asLong());
    }

    static ObjectNode originRecord(Map<String, Input> inputs) {
        ObjectNode record = Settings.JSON.createObjectNode().put("version", VERSION).put("kind", "origin");
        ObjectNode node = record.putObject("inputs");
        inputs.forEach((topic, input) -> {
            ObjectNode one = node.putObject(topic).put("id", input.id());
            write(one.putObject("positions"), input.origin());
        });
        return record;
    }

    static ObjectNode sealRecord(int number, Map<String, Place[]> ends) {
        ObjectNode record =
                Settings.JSON.createObjectNode().put("version", VERSION).put("kind", "seal").put("number", number);
        ObjectNode node = record.putObject("positions");
        new TreeMap<>(ends).forEach((group, end) -> {
            ObjectNode places = node.putObject(group);
            for (int shard = 0; shard < end.length; shard++) {
                places.set(Integer.toString(shard), end[shard].json());
            }
        });
        return record;
    }

    static long[] longs(JsonNode array) {
        long[] values = new long[array.size()];
        for (int index = 0; index < values.length; index++) {
            values[index] = array.path(index).asLong();
        }
        return values;
    }

    private static long[] positions(JsonNode node) {
        long[] positions = new long[node.size()];
        for (int shard = 0; shard < positions.length; shard++) {
            positions[shard] = node.path(Integer.toString(shard)).asLong();
        }
        return positions;
    }

    private static void write(ObjectNode node, long[] positions) {
        for (int shard = 0; shard < positions.length; shard++) {
            node.put(Integer.toString(shard), positions[shard]);
        }
    }
}
