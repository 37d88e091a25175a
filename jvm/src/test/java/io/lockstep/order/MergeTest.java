package io.lockstep.order;

import com.fasterxml.jackson.databind.JsonNode;
import io.lockstep.Settings;
import io.lockstep.Vectors;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Set;

/** Replays stories that the Python merge told: what counted, what was taken, and every place on the way. */
public final class MergeTest {
    private MergeTest() {}

    public static void stories(File file) throws IOException {
        for (String line : Files.readAllLines(file.toPath())) {
            JsonNode story = Settings.JSON.readTree(line);
            if (story.has("queues")) {
                InBandMergeTest.story(story);
            } else {
                story(story);
            }
        }
    }

    private static void story(JsonNode story) {
        String title = "story " + story.path("seed");
        Set<OrderRecord.Queue> growing = Set.copyOf(OrderRecord.queues(story.path("growing")));
        Merge merge = new Merge(MergePlace.start(longs(story.path("starts"))), growing);
        int number = 0;
        for (JsonNode step : story.path("steps")) {
            String what = title + ", step " + number++;
            switch (step.path("do").asText()) {
                case "follow" -> {
                    byte[] data = step.path("record").asText().getBytes(StandardCharsets.UTF_8);
                    boolean counts = merge.follow(step.path("offset").asLong(), OrderRecord.decode(data));
                    same(what + ", counts", step.path("counts").asBoolean(), counts);
                }
                case "take" -> {
                    for (JsonNode input : step.path("inputs")) {
                        same(what + ", queue", input.path(0).asInt(), merge.peek());
                        same(what + ", offset", input.path(1).asLong(), merge.offset());
                        same(what + ", _sn", input.path(2).asLong(), merge.upcoming());
                        same(what + ", skipped", input.path(3).asBoolean(), !merge.take());
                    }
                    if (step.path("ended").asBoolean()) {
                        same(what + ", the order reaches no further", -1, merge.peek());
                    }
                }
                case "place" -> same(what + ", place", step.path("place"), Vectors.plain(merge.place().json()));
                default -> {
                    int queues = story.path("starts").size();
                    merge = new Merge(MergePlace.parse(step.path("place"), queues), growing);
                }
            }
        }
        Vectors.equal(title, true, true);
    }

    static void same(String what, Object expected, Object actual) {
        if (!expected.equals(actual)) {
            throw new AssertionError(what + ": expected " + expected + ", got " + actual);
        }
    }

    private static long[] longs(JsonNode array) {
        long[] values = new long[array.size()];
        for (int index = 0; index < values.length; index++) {
            values[index] = array.path(index).asLong();
        }
        return values;
    }
}
