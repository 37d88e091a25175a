package io.lockstep.order;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.lockstep.Settings;
import java.util.Arrays;
import java.util.List;
import java.util.stream.LongStream;

/**
 * Where a shard with an order topic is. The Python twin is {@code lockstep.order.merge.Position}.
 *
 * @param orderOffset order records below this one are consumed; reading goes on here
 * @param done inputs that are consumed already of those that the record at {@code orderOffset} admits; everything
 *     else here is as it was before that record
 * @param skips queue and offset in turn of skips that were announced and not met yet
 * @param added the queues behind those that the run began with; {@code inputs} and {@code ends} have them too
 */
public record MergePlace(
        long orderOffset,
        long done,
        long[] inputs,
        long sn,
        int next,
        long[] ends,
        long epoch,
        long version,
        long[] skips,
        List<OrderRecord.Queue> added)
        implements Place {
    /** Where a run begins that reads its queues from these offsets. */
    public static MergePlace start(long[] origin) {
        return new MergePlace(0, 0, origin, 0, 0, origin, 0, 0, new long[0], List.of());
    }

    @Override
    public long upcoming() {
        return sn + done;
    }

    @Override
    public JsonNode json() {
        ObjectNode node = Settings.JSON.createObjectNode();
        node.put("order_offset", orderOffset).put("done", done);
        write(node.putArray("inputs"), inputs);
        node.put("sn", sn).put("next", next);
        write(node.putArray("ends"), ends);
        node.put("epoch", epoch).put("version", version);
        write(node.putArray("skips"), skips);
        if (!added.isEmpty()) {
            ArrayNode array = node.putArray("added");
            added.forEach(queue -> array.addArray().add(queue.topic()).add(queue.partition()));
        }
        return node;
    }

    /** @param begun how many queues the run began with */
    static MergePlace parse(JsonNode node, int begun) {
        List<OrderRecord.Queue> added;
        try {
            added = node.has("added") ? OrderRecord.queues(node.path("added")) : List.of();
        } catch (IllegalArgumentException malformed) {
            return null;
        }
        int queues = begun + added.size();
        long[] inputs = read(node.path("inputs"));
        long[] ends = read(node.path("ends"));
        long[] skips = read(node.path("skips"));
        long[] scalars = {
            node.path("order_offset").asLong(-1),
            node.path("done").asLong(-1),
            node.path("sn").asLong(-1),
            node.path("next").asLong(-1),
            node.path("epoch").asLong(-1),
            node.path("version").asLong(-1),
        };
        boolean sound = inputs.length == queues
                && ends.length == queues
                && skips.length % 2 == 0
                && scalars[3] < queues
                && LongStream.of(scalars).allMatch(value -> value >= 0);
        return sound
                ? new MergePlace(
                        scalars[0],
                        scalars[1],
                        inputs,
                        scalars[2],
                        (int) scalars[3],
                        ends,
                        scalars[4],
                        scalars[5],
                        skips,
                        added)
                : null;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof MergePlace that && json().equals(that.json());
    }

    @Override
    public int hashCode() {
        return Long.hashCode(upcoming()) * 31 + Arrays.hashCode(inputs);
    }

    static void write(ArrayNode array, long[] values) {
        for (long value : values) {
            array.add(value);
        }
    }

    static long[] read(JsonNode array) {
        long[] values = new long[array.size()];
        for (int index = 0; index < values.length; index++) {
            values[index] = array.path(index).asLong(-1);
        }
        return values;
    }
}
