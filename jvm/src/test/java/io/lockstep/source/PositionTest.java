package io.lockstep.source;

import com.fasterxml.jackson.databind.JsonNode;
import io.lockstep.LockstepException;
import io.lockstep.Vectors;
import io.lockstep.order.Place;

public final class PositionTest {
    private PositionTest() {}

    public static void roundTrip(JsonNode vector) {
        JsonNode positions = vector.path("positions");
        String order = vector.path("order").asText("partition");
        boolean merged = !order.equals("partition");
        Place[] next = new Place[positions.size()];
        int[] queues = new int[next.length];
        for (int shard = 0; shard < next.length; shard++) {
            JsonNode at = positions.path(Integer.toString(shard));
            JsonNode merge = at.has("at") ? at.path("at") : at;
            queues[shard] = merged ? merge.path("inputs").size() - merge.path("added").size() : 1;
            next[shard] = Place.parse(at, queues[shard], merged);
        }
        String topic = vector.path("topic").asText();
        Position position = new Position(topic, order, vector.path("seal").asInt(), next);
        Vectors.equal("position", vector.path("json").asText(), position.json());
        Position read = Position.parse(position.json(), topic, order, merged, queues);
        Vectors.equal("position read back", position, read);
    }

    public static void refuse(JsonNode vector) {
        String message = "nothing";
        try {
            Position.parse(vector.path("json").asText(), "payments", "partition", false, new int[] {1, 1});
        } catch (LockstepException error) {
            message = error.getMessage();
        }
        boolean says = message.contains(vector.path("says").asText());
        Vectors.equal("refusal of " + vector.path("json") + ", which said: " + message, true, says);
    }
}
