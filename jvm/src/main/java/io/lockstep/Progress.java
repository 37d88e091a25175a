package io.lockstep;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * How far this JVM's readers are, for the site's status: Spark itself reports only at the end of a batch.
 *
 * <p>Written by readers without locks, read from Python. Local Spark only: on a cluster the readers are elsewhere.
 */
public final class Progress {
    private record At(long next, long behind) {}

    private static final Map<String, Map<Integer, At>> SHARDS = new ConcurrentHashMap<>();
    private static volatile String query;
    private static volatile long batchBegan;
    private static volatile long batch = -1;

    private Progress() {}

    /**
     * {"batch": number or -1, "batch_began": epoch ms or 0, "topics": {topic: {shard: [next offset, records behind]}}};
     * -1 records behind: not known yet.
     */
    public static String json() {
        ObjectNode node = Settings.JSON.createObjectNode();
        node.put("batch", batch).put("batch_began", batchBegan);
        ObjectNode topics = node.putObject("topics");
        SHARDS.forEach((topic, shards) -> {
            ObjectNode one = topics.putObject(topic);
            shards.forEach((shard, at) ->
                    one.putArray(Integer.toString(shard)).add(at.next()).add(at.behind()));
        });
        return node.toString();
    }

    /** Called by each reader of a batch: the first of them counts, and of several queries the first that began. */
    public static synchronized void batchBegan(String id, long number) {
        if (SHARDS.isEmpty() || (query != null && !query.equals(id))) {
            return;
        }
        query = id;
        if (number != batch) {
            batch = number;
            batchBegan = System.currentTimeMillis();
        }
    }

    /** A query will read this input. What readers of a query that has ended may still say does not count. */
    public static void expect(String topic) {
        SHARDS.putIfAbsent(topic, new ConcurrentHashMap<>());
    }

    public static void read(String topic, int shard, long next, long behind) {
        Map<Integer, At> shards = SHARDS.get(topic);
        if (shards != null) {
            shards.put(shard, new At(next, behind));
        }
    }

    /** A query has ended. After the last one no batch is known, until one that is started again begins it anew. */
    public static synchronized void forget(String topic) {
        SHARDS.remove(topic);
        if (SHARDS.isEmpty()) {
            query = null;
            batchBegan = 0;
            batch = -1;
        }
    }
}
