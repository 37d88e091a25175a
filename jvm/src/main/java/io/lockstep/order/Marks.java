package io.lockstep.order;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.lockstep.Settings;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.TreeMap;

/**
 * What was accepted of one partition that all sites write to: first arrival wins (design rules 4 and 8). The Python
 * twin is {@code lockstep.replicas.deduplicate.Marks}.
 */
public final class Marks implements Serializable {
    private static final long serialVersionUID = 1;
    private static final int SIZE = 22;
    private static final byte VERSION = 1;
    private static final int MOST = 1 << 15;

    private final TreeMap<Long, long[]> marks = new TreeMap<>();

    /** Whether this output is new: then it is marked. Bytes that are no identity are not: a stranger wrote them. */
    public boolean accept(byte[] identity) {
        if (identity == null || identity.length != SIZE || identity[0] != VERSION) {
            return false;
        }
        ByteBuffer bytes = ByteBuffer.wrap(identity);
        long sequence = bytes.getLong(2); // shard and reducer
        long a = bytes.getLong(10);
        int b = bytes.getInt(18);
        if (a < 0 || b < 0) {
            return false;
        }
        long[] mark = marks.get(sequence);
        if (mark == null) {
            if (marks.size() >= MOST) {
                throw new IllegalStateException("more than " + MOST + " sequences in one partition of a stage topic");
            }
            marks.put(sequence, new long[] {a, b});
            return true;
        }
        if (a < mark[0] || (a == mark[0] && b <= mark[1])) {
            return false;
        }
        mark[0] = a;
        mark[1] = b;
        return true;
    }

    public Marks copy() {
        Marks copy = new Marks();
        marks.forEach((sequence, mark) -> copy.marks.put(sequence, mark.clone()));
        return copy;
    }

    /** {"shard/reducer": [a, b]}. */
    public JsonNode json() {
        ObjectNode node = Settings.JSON.createObjectNode();
        marks.forEach((sequence, mark) ->
                node.putArray((int) (sequence >> 32) + "/" + sequence.intValue()).add(mark[0]).add(mark[1]));
        return node;
    }

    public static Marks parse(JsonNode node) {
        Marks parsed = new Marks();
        node.properties().forEach(entry -> {
            String[] names = entry.getKey().split("/");
            long sequence = (Long.parseLong(names[0]) << 32) | (Integer.parseInt(names[1]) & 0xffffffffL);
            JsonNode mark = entry.getValue();
            parsed.marks.put(sequence, new long[] {mark.path(0).asLong(), mark.path(1).asLong()});
        });
        return parsed;
    }
}
