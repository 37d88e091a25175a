package io.lockstep.source;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.lockstep.LockstepException;
import io.lockstep.Settings;
import java.util.Arrays;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * Where the shards of one topic are: Spark's offset, as versioned JSON, the same on every site.
 *
 * <p>{@code seal} is the number of the sealed batch that ends here; -1 at the origin and in real time, where
 * batches end by the clock.
 */
final class Position extends Offset {
    static final int VERSION = 1;
    static final String ORDER = "partition";
    static final int NO_SEAL = -1;

    final String topic;
    final int seal;
    final long[] next;

    /** @param next for every shard, the offset of the first record that was not read yet */
    Position(String topic, int seal, long[] next) {
        this.topic = topic;
        this.seal = seal;
        this.next = next;
    }

    @Override
    public String json() {
        ObjectNode node = Settings.JSON.createObjectNode();
        node.put("version", VERSION).put("order", ORDER).put("topic", topic).put("seal", seal);
        ObjectNode positions = node.putObject("positions");
        for (int shard = 0; shard < next.length; shard++) {
            positions.put(Integer.toString(shard), next[shard]);
        }
        return node.toString();
    }

    static Position parse(String json, String topic, int shards) {
        JsonNode node;
        try {
            node = Settings.JSON.readTree(json);
        } catch (JsonProcessingException error) {
            throw refused("it is not JSON: " + json);
        }
        if (node.path("version").asInt() != VERSION) {
            throw refused("its position has version " + node.path("version") + ", this Lockstep reads " + VERSION);
        }
        if (!ORDER.equals(node.path("order").asText())) {
            throw refused("it was written under order " + node.path("order") + ", this run has \"" + ORDER + "\"");
        }
        if (!topic.equals(node.path("topic").asText())) {
            throw refused("it reads topic " + node.path("topic") + ", this pipeline reads \"" + topic + "\"");
        }
        JsonNode positions = node.path("positions");
        if (positions.size() != shards) {
            throw refused("it knows " + positions.size() + " partitions of " + topic + ", the run has " + shards);
        }
        long[] next = new long[shards];
        for (int shard = 0; shard < shards; shard++) {
            JsonNode at = positions.path(Integer.toString(shard));
            if (!at.isIntegralNumber() || at.asLong() < 0) {
                throw refused("it has no position for partition " + shard + " of " + topic);
            }
            next[shard] = at.asLong();
        }
        return new Position(topic, node.path("seal").asInt(NO_SEAL), next);
    }

    private static LockstepException refused(String why) {
        return new LockstepException(
                "this checkpoint does not fit the pipeline: " + why,
                "use the pipeline and version that wrote it, or start a new run under another name");
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Position that
                && topic.equals(that.topic)
                && seal == that.seal
                && Arrays.equals(next, that.next);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(next) * 31 + seal;
    }
}
