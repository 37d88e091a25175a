package io.lockstep.source;

import com.fasterxml.jackson.databind.JsonNode;
import io.lockstep.LockstepException;
import io.lockstep.Vectors;

public final class PositionTest {
    private PositionTest() {}

    public static void roundTrip(JsonNode vector) {
        JsonNode positions = vector.path("positions");
        long[] next = new long[positions.size()];
        for (int shard = 0; shard < next.length; shard++) {
            next[shard] = positions.path(Integer.toString(shard)).asLong();
        }
        String topic = vector.path("topic").asText();
        Position position = new Position(topic, vector.path("seal").asInt(), next);
        Vectors.equal("position", vector.path("json").asText(), position.json());
        Vectors.equal("position read back", position, Position.parse(position.json(), topic, next.length));
    }

    public static void refuse(JsonNode vector) {
        String message = "nothing";
        try {
            Position.parse(vector.path("json").asText(), "payments", 2);
        } catch (LockstepException error) {
            message = error.getMessage();
        }
        boolean says = message.contains(vector.path("says").asText());
        Vectors.equal("refusal of " + vector.path("json") + ", which said: " + message, true, says);
    }
}
