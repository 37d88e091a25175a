package io.lockstep.source;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.lockstep.LockstepException;
import io.lockstep.Settings;
import io.lockstep.order.Place;
import java.util.Arrays;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * Where the shards of one input are: Spark's offset, as versioned JSON, the same on every site.
 *
 * <p>{@code seal} is the number of the sealed batch that ends here; -1 at the origin and in real time, where
 * batches end by the clock.
 */
final class Position extends Offset {
    static final int VERSION = 1;
    static final int NO_SEAL = -1;

    final String input;
    final String order;
    final int seal;
    final Place[] next;

    /** @param next for every shard, the place of the first record that was not read yet */
    Position(String input, String order, int seal, Place[] next) {
        this.input = input;
        this.order = order;
        this.seal = seal;
        this.next = next;
    }

    @Override
    public String json() {
        ObjectNode node = Settings.JSON.createObjectNode();
        node.put("version", VERSION).put("order", order).put("topic", input).put("seal", seal);
        ObjectNode positions = node.putObject("positions");
        for (int shard = 0; shard < next.length; shard++) {
            positions.set(Integer.toString(shard), next[shard].json());
        }
        return node.toString();
    }

    /** @param queues how many queues each shard has; its length is the number of shards */
    static Position parse(String json, String input, String order, boolean merged, int[] queues) {
        JsonNode node;
        try {
            node = Settings.JSON.readTree(json);
        } catch (JsonProcessingException error) {
            throw refused("it is not JSON: " + json);
        }
        if (node.path("version").asInt() != VERSION) {
            throw refused("its position has version " + node.path("version") + ", this Lockstep reads " + VERSION);
        }
        if (!order.equals(node.path("order").asText())) {
            throw refused("it was written under order " + node.path("order") + ", this run has \"" + order + "\"");
        }
        if (!input.equals(node.path("topic").asText())) {
            throw refused("it reads topic " + node.path("topic") + ", this pipeline reads \"" + input + "\"");
        }
        JsonNode positions = node.path("positions");
        if (positions.size() != queues.length) {
            throw refused(
                    "it knows " + positions.size() + " partitions of " + input + ", the run has " + queues.length);
        }
        Place[] next = new Place[queues.length];
        for (int shard = 0; shard < next.length; shard++) {
            next[shard] = Place.parse(positions.path(Integer.toString(shard)), queues[shard], merged);
            if (next[shard] == null) {
                throw refused("it has no position for partition " + shard + " of " + input);
            }
        }
        return new Position(input, order, node.path("seal").asInt(NO_SEAL), next);
    }

    private static LockstepException refused(String why) {
        return new LockstepException(
                "this checkpoint does not fit the pipeline: " + why,
                "use the pipeline and version that wrote it, or start a new run under another name");
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Position that
                && input.equals(that.input)
                && order.equals(that.order)
                && seal == that.seal
                && Arrays.equals(next, that.next);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(next) * 31 + seal;
    }
}
