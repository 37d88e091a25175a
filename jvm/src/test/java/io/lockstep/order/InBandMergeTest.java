package io.lockstep.order;

import com.fasterxml.jackson.databind.JsonNode;
import io.lockstep.Vectors;
import java.nio.charset.StandardCharsets;

/** Replays queues with heartbeats as the Python merge took them, begun anew at every place on the way. */
final class InBandMergeTest {
    private InBandMergeTest() {}

    static void story(JsonNode story) {
        String title = "story " + story.path("seed");
        JsonNode queues = story.path("queues");
        InBandMerge merge = new InBandMerge(InBandPlace.start(new long[queues.size()]));
        for (JsonNode input : story.path("taken")) {
            InBandPlace place = merge.place();
            merge = new InBandMerge(InBandPlace.parse(Vectors.plain(place.json()), queues.size()));
            skipHeartbeats(merge, queues);
            int queue = merge.next();
            long offset = merge.place().inputs()[queue];
            MergeTest.same(title + ", queue", input.path(0).asInt(), queue);
            MergeTest.same(title + ", offset", input.path(1).asLong(), offset);
            MergeTest.same(title + ", _sn", input.path(2).asLong(), merge.event(offset));
        }
        skipHeartbeats(merge, queues);
        int queue = merge.next();
        long reached = merge.place().inputs()[queue];
        MergeTest.same(title + ", it waits", (long) queues.path(queue).size(), reached);
        Vectors.equal(title, true, true);
    }

    private static void skipHeartbeats(InBandMerge merge, JsonNode queues) {
        while (true) {
            int offset = (int) merge.place().inputs()[merge.next()];
            JsonNode item = queues.path(merge.next()).path(offset);
            long sequence = item.isMissingNode()
                    ? -1
                    : InBandMerge.sequence(item.asText().getBytes(StandardCharsets.UTF_8));
            if (sequence < 0) {
                return;
            }
            merge.heartbeat(offset, sequence);
        }
    }
}
