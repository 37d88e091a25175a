package io.lockstep.order;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.lockstep.Settings;
import java.util.Arrays;
import java.util.stream.LongStream;

/**
 * Where a shard is whose queues hold heartbeats among their events.
 *
 * @param inputs of each queue, the offset of the first record that is not consumed
 * @param beats of each queue, the last heartbeat that is consumed
 * @param next the queue whose turn it is
 * @param sn how many events are consumed
 */
public record InBandPlace(long[] inputs, long[] beats, int next, long sn) implements Place {
    /** Where a run begins that reads its queues from these offsets. */
    public static InBandPlace start(long[] origin) {
        return new InBandPlace(origin, new long[origin.length], 0, 0);
    }

    @Override
    public long upcoming() {
        return sn;
    }

    @Override
    public JsonNode json() {
        ObjectNode node = Settings.JSON.createObjectNode();
        MergePlace.write(node.putArray("inputs"), inputs);
        MergePlace.write(node.putArray("beats"), beats);
        return node.put("next", next).put("sn", sn);
    }

    static InBandPlace parse(JsonNode node, int queues) {
        long[] inputs = MergePlace.read(node.path("inputs"));
        long[] beats = MergePlace.read(node.path("beats"));
        int next = node.path("next").asInt(-1);
        long sn = node.path("sn").asLong(-1);
        boolean sound = inputs.length == queues
                && beats.length == queues
                && next >= 0
                && next < queues
                && sn >= 0
                && LongStream.concat(LongStream.of(inputs), LongStream.of(beats)).allMatch(value -> value >= 0);
        return sound ? new InBandPlace(inputs, beats, next, sn) : null;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof InBandPlace that && json().equals(that.json());
    }

    @Override
    public int hashCode() {
        return Long.hashCode(sn) * 31 + Arrays.hashCode(inputs);
    }
}
