package io.lockstep;

import com.fasterxml.jackson.databind.JsonNode;
import io.lockstep.checkpoint.LocalFilesTest;
import io.lockstep.order.MergeTest;
import io.lockstep.sink.IdentityTest;
import io.lockstep.source.GroupTest;
import io.lockstep.source.PositionTest;
import io.lockstep.source.SealsTest;
import java.io.File;
import java.io.IOException;
import java.util.Objects;

/** Runs Java's half of the shared vectors: {@code java io.lockstep.Vectors FOLDER [MERGE-STORIES...]}. Prints how many. */
public final class Vectors {
    private static int ran;

    private Vectors() {}

    public static void main(String[] arguments) throws IOException {
        File folder = new File(arguments[0]);
        JsonNode identity = Settings.JSON.readTree(new File(folder, "identity.json"));
        identity.path("murmur2").forEach(IdentityTest::murmur2);
        identity.path("identities").forEach(IdentityTest::encode);
        identity.path("partitions").forEach(IdentityTest::partition);
        JsonNode position = Settings.JSON.readTree(new File(folder, "position.json"));
        position.path("positions").forEach(PositionTest::roundTrip);
        position.path("refused").forEach(PositionTest::refuse);
        Settings.JSON.readTree(new File(folder, "seals.json")).forEach(SealsTest::fold);
        GroupTest.all();
        ProgressTest.all();
        LocalFilesTest.all();
        for (int next = 1; next < arguments.length; next++) {
            MergeTest.stories(new File(arguments[next]));
        }
        System.out.println("ran " + ran);
    }

    /** As if it came from text: numbers compare by value only then. */
    public static JsonNode plain(JsonNode node) {
        try {
            return Settings.JSON.readTree(node.toString());
        } catch (IOException error) {
            throw new AssertionError(error);
        }
    }

    public static void equal(String what, Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) {
            throw new AssertionError(what + ": expected " + expected + ", got " + actual);
        }
        ran++;
    }
}
