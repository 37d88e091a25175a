package io.lockstep;

import com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * The input record that a failed task had in hand: whoever restarts the site may find that no site gets past it,
 * and append a skip (design rule 3).
 *
 * <p>It is the culprit when the failing code runs in the task that reads, row by row: before any shuffle, and not in
 * Python, which gets rows in bundles. So it is a suspect, no more.
 */
public final class Suspect {
    private static volatile String json = "";

    private Suspect() {}

    /** {"topic", "shard", "offset", "reason"}, or an empty string when no task of this JVM failed. */
    public static String json() {
        return json;
    }

    public static void accuse(String topic, int shard, long offset, Throwable error) {
        ObjectNode node = Settings.JSON.createObjectNode();
        node.put("topic", topic).put("shard", shard).put("offset", offset).put("reason", String.valueOf(error));
        json = node.toString();
    }
}
