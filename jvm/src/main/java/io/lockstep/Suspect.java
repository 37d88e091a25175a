package io.lockstep;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import org.apache.spark.TaskKilledException;

/**
 * The input record that a failed task had in hand: whoever restarts the site may find that no site gets past it,
 * and append a skip (design rule 3).
 *
 * <p>It is the culprit when the failing code runs in the task that reads, row by row. It is nobody's fault when the
 * task was killed because another one failed (after a shuffle), or when a connection broke. Where Python reads ahead
 * the record in hand means nothing: the Python side, which knows the plan, does not ask then.
 */
public final class Suspect {
    private static volatile String json = "";

    private Suspect() {}

    /** {"topic", "shard", "offset", "reason"}, or an empty string when no task of this JVM failed. */
    public static String json() {
        return json;
    }

    /** Whether a task failed of what happens around it, not of what it was reading. */
    public static boolean isOurs(Throwable error) {
        int depth = 0;
        for (Throwable cause = error; cause != null && depth < 50; cause = cause.getCause(), depth++) {
            if (cause instanceof TaskKilledException
                    || cause instanceof InterruptedException
                    || cause instanceof IOException) {
                return true;
            }
        }
        return false;
    }

    public static void accuse(String topic, int shard, long offset, Throwable error) {
        ObjectNode node = Settings.JSON.createObjectNode();
        node.put("topic", topic).put("shard", shard).put("offset", offset).put("reason", String.valueOf(error));
        json = node.toString();
    }
}
