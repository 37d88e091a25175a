package io.lockstep.order;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectReader;
import io.lockstep.Settings;
import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;

/** A record of an order topic. The Python twin, which writes them, is {@code lockstep.order.records}. */
public sealed interface OrderRecord {
    /** The topic and the partition that a queue is. */
    record Queue(String topic, int partition) implements Serializable {}

    /**
     * A heartbeat stands in each queue right before {@code ends[queue]} (LiveRobin).
     *
     * @param added the queues behind those that the run began with, in the order of their numbers
     */
    record Cut(long[] ends, List<Queue> added) implements OrderRecord {}

    /** A new leader opens its epoch (KaZoo). */
    record Claim(long epoch) implements OrderRecord {}

    /** Consume {@code counts[i]} of queue {@code queues[i]}, for each i in turn (KaZoo). */
    record Order(long epoch, long version, long[] queues, long[] counts) implements OrderRecord {}

    /** This one input is left out. */
    record Skip(long queue, long offset) implements OrderRecord {}

    int LIMIT = 1_000_000;
    Pattern TOPIC = Pattern.compile("[a-zA-Z0-9._-]{1,249}");
    ObjectReader READER = Settings.JSON.reader().with(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

    /** The record, or null for anything that is not one: a reader takes it as void. */
    static OrderRecord decode(byte[] data) {
        if (data == null || data.length > LIMIT) {
            return null;
        }
        JsonNode node;
        try {
            node = READER.readTree(data);
        } catch (IOException error) {
            return null;
        }
        if (node == null || !node.isObject() || !node.path("is").isTextual()) {
            return null;
        }
        try {
            return switch (node.path("is").textValue()) {
                case "cut" -> {
                    only(node, Set.of("is", "ends", "by", "added"));
                    List<Queue> added = node.has("added") ? queues(node.path("added")) : List.of();
                    yield new Cut(numbers(node.path("ends")), added);
                }
                case "claim" -> {
                    only(node, Set.of("is", "epoch", "by"));
                    yield new Claim(number(node.path("epoch")));
                }
                case "order" -> {
                    only(node, Set.of("is", "epoch", "version", "runs"));
                    yield order(node);
                }
                case "skip" -> {
                    only(node, Set.of("is", "queue", "offset", "reason"));
                    if (!node.path("reason").isTextual()) {
                        throw new IllegalArgumentException();
                    }
                    yield new Skip(number(node.path("queue")), number(node.path("offset")));
                }
                default -> null;
            };
        } catch (IllegalArgumentException malformed) {
            return null;
        }
    }

    private static Order order(JsonNode node) {
        JsonNode runs = list(node.path("runs"));
        long[] queues = new long[runs.size()];
        long[] counts = new long[runs.size()];
        for (int run = 0; run < queues.length; run++) {
            long[] pair = numbers(runs.path(run));
            if (pair.length != 2) {
                throw new IllegalArgumentException();
            }
            queues[run] = pair[0];
            counts[run] = pair[1];
        }
        return new Order(number(node.path("epoch")), number(node.path("version")), queues, counts);
    }

    /** [[topic, partition], ...]. */
    static List<Queue> queues(JsonNode node) {
        List<Queue> queues = new ArrayList<>();
        for (JsonNode pair : list(node)) {
            JsonNode topic = list(pair).path(0);
            long partition = number(pair.path(1));
            if (pair.size() != 2
                    || !topic.isTextual()
                    || !TOPIC.matcher(topic.textValue()).matches()
                    || partition > Integer.MAX_VALUE) {
                throw new IllegalArgumentException();
            }
            queues.add(new Queue(topic.textValue(), (int) partition));
        }
        return List.copyOf(queues);
    }

    private static void only(JsonNode node, Set<String> fields) {
        node.fieldNames().forEachRemaining(name -> {
            if (!fields.contains(name)) {
                throw new IllegalArgumentException();
            }
        });
        if (node.has("by") && !node.path("by").isTextual()) {
            throw new IllegalArgumentException();
        }
    }

    private static JsonNode list(JsonNode node) {
        if (!node.isArray()) {
            throw new IllegalArgumentException();
        }
        return node;
    }

    private static long[] numbers(JsonNode node) {
        long[] numbers = new long[list(node).size()];
        for (int index = 0; index < numbers.length; index++) {
            numbers[index] = number(node.path(index));
        }
        return numbers;
    }

    private static long number(JsonNode node) {
        if (!node.isIntegralNumber() || !node.canConvertToLong() || node.longValue() < 0) {
            throw new IllegalArgumentException();
        }
        return node.longValue();
    }
}
