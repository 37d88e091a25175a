package io.lockstep.order;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.LongNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.lockstep.Settings;
import java.io.Serializable;

/** Where one shard is in its order: the same on every site. */
public sealed interface Place extends Serializable permits Place.Offset, Place.Deduplicated, MergePlace, InBandPlace {
    /** The {@code _sn} of the next input: of two places of one shard the later has the larger one. */
    long upcoming();

    JsonNode json();

    default Place later(Place other) {
        return other.upcoming() > upcoming() ? other : this;
    }

    /** Under order {@code partition} the offset says it all. */
    record Offset(long next) implements Place {
        @Override
        public long upcoming() {
            return next;
        }

        @Override
        public JsonNode json() {
            return LongNode.valueOf(next);
        }
    }

    /**
     * A place in inputs that all sites write to, with what was accepted of each queue before it.
     *
     * @param marks of each queue; null where a queue is not deduplicated
     */
    record Deduplicated(Place at, Marks[] marks) implements Place {
        @Override
        public long upcoming() {
            return at.upcoming();
        }

        @Override
        public JsonNode json() {
            ObjectNode node = Settings.JSON.createObjectNode();
            node.set("at", at.json());
            ArrayNode array = node.putArray("marks");
            for (Marks one : marks) {
                array.add(one == null ? array.nullNode() : one.json());
            }
            return node;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Deduplicated that && json().equals(that.json());
        }

        @Override
        public int hashCode() {
            return at.hashCode();
        }
    }

    /** What {@link #json} wrote, or null if it is no place of a shard that began with so many queues. */
    static Place parse(JsonNode node, int queues, boolean merged) {
        if (node.has("marks")) {
            Place at = parse(node.path("at"), queues, merged);
            Marks[] marks = new Marks[node.path("marks").size()];
            for (int queue = 0; queue < marks.length; queue++) {
                JsonNode one = node.path("marks").path(queue);
                marks[queue] = one.isNull() ? null : Marks.parse(one);
            }
            return at == null || marks.length != queues ? null : new Deduplicated(at, marks);
        }
        if (merged) {
            return node.has("beats") ? InBandPlace.parse(node, queues) : MergePlace.parse(node, queues);
        }
        return node.isIntegralNumber() && node.longValue() >= 0 ? new Offset(node.longValue()) : null;
    }
}
