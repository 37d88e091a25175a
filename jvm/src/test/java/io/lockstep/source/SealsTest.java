package io.lockstep.source;

import com.fasterxml.jackson.databind.JsonNode;
import io.lockstep.Vectors;
import java.util.Arrays;
import java.util.stream.StreamSupport;

public final class SealsTest {
    private SealsTest() {}

    /** Fold the records of a story; compare which of them counted, and where every batch ends. */
    public static void fold(JsonNode story) {
        String title = story.path("story").asText();
        Seals seals = new Seals();
        int at = 0;
        for (JsonNode step : story.path("log")) {
            boolean counts = seals.apply(step.path("record"));
            Vectors.equal(title + ", record " + at++, step.path("counts").asBoolean(), counts);
        }
        story.path("ends").properties().forEach(topic -> {
            Vectors.equal(title + ", batches", topic.getValue().size() - 1, seals.count());
            for (int number = -1; number < seals.count(); number++) {
                long[] expected = longs(topic.getValue().path(number + 1));
                long[] actual = seals.end(topic.getKey(), number);
                Vectors.equal(
                        title + ", end of batch " + number, Arrays.toString(expected), Arrays.toString(actual));
            }
        });
        for (JsonNode skipped : story.path("skipped")) {
            boolean found = seals.skips(skipped.path("topic").asText(), skipped.path("shard").asInt())
                    .contains(skipped.path("offset").asLong());
            Vectors.equal(title + ", skip", true, found);
        }
    }

    private static long[] longs(JsonNode array) {
        return StreamSupport.stream(array.spliterator(), false).mapToLong(JsonNode::asLong).toArray();
    }
}
