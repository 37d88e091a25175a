package io.lockstep.source;

import com.fasterxml.jackson.databind.JsonNode;
import io.lockstep.Vectors;
import io.lockstep.order.Place;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.StreamSupport;

public final class SealsTest {
    private SealsTest() {}

    /** Fold the records of a story; compare which of them counted, and where every batch ends. */
    public static void fold(JsonNode story) {
        String title = story.path("story").asText();
        List<Group> groups = new ArrayList<>();
        story.path("ends").fieldNames().forEachRemaining(name -> {
            groups.add(Group.parse(name, name.contains("+") ? "order" : ""));
        });
        Seals seals = new Seals(groups);
        int at = 0;
        for (JsonNode step : story.path("log")) {
            boolean counts = seals.apply(step.path("record"));
            Vectors.equal(title + ", record " + at++, step.path("counts").asBoolean(), counts);
        }
        for (Group group : groups) {
            JsonNode ends = story.path("ends").path(group.name());
            Vectors.equal(title + ", batches", ends.size() - 1, seals.count());
            for (int number = -1; number < seals.count(); number++) {
                long[] expected = longs(ends.path(number + 1));
                long[] actual = Arrays.stream(seals.end(group, number)).mapToLong(Place::upcoming).toArray();
                Vectors.equal(
                        title + ", end of batch " + number, Arrays.toString(expected), Arrays.toString(actual));
            }
        }
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
