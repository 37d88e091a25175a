package io.lockstep.source;

import io.lockstep.order.Place;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.TopicPartition;

/**
 * How fast the source alone reads a backlog in its order, without Spark: one thread for each shard. For
 * {@code lockstep bench order}.
 *
 * <p>{@code java io.lockstep.source.Drain BOOTSTRAP-SERVERS GROUP ORDER-TOPIC:BASE SHARDS RECORDS-PER-SHARD}; the topics
 * have a partition for each shard. A fifth of the records warms the code up. Prints how many were counted, in how many
 * milliseconds, and the megabytes of heap that are in use at the end.
 */
public final class Drain {
    private Drain() {}

    public static void main(String[] arguments) throws InterruptedException {
        Group group = Group.parse(arguments[1], arguments[2]);
        int shards = Integer.parseInt(arguments[3]);
        long records = Long.parseLong(arguments[4]);
        long warming = Math.max(1, records / 5);
        Map<String, Object> kafka = Map.of("bootstrap.servers", arguments[0]);
        CountDownLatch ready = new CountDownLatch(shards);
        CountDownLatch start = new CountDownLatch(1);
        List<Thread> readers = new ArrayList<>();
        for (int number = 0; number < shards; number++) {
            List<TopicPartition> queues = group.queues(number, topic -> shards);
            Place from = group.start(new long[queues.size()]);
            Shard shard = new Shard(
                    "drain", group, number, queues, Set.of(), Position.NO_SEAL, from, null, kafka, Map.of(), false);
            Sequence sequence = Sequence.take(shard);
            Thread reader = new Thread(() -> drain(sequence, warming, records, ready, start));
            readers.add(reader);
            reader.start();
        }
        ready.await();
        long began = System.nanoTime();
        start.countDown();
        for (Thread reader : readers) {
            reader.join();
        }
        long took = (System.nanoTime() - began) / 1_000_000;
        Runtime runtime = Runtime.getRuntime();
        System.out.println(shards * (records - warming) + " " + took + " " + ((runtime.totalMemory() - runtime.freeMemory()) >> 20));
    }

    private static void drain(
            Sequence sequence, long warming, long records, CountDownLatch ready, CountDownLatch start) {
        read(sequence, warming);
        ready.countDown();
        try {
            start.await();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return;
        }
        read(sequence, records - warming);
        sequence.discard();
    }

    private static void read(Sequence sequence, long records) {
        for (long read = 0; read < records; ) {
            if (sequence.next(null, 100) != null) {
                read++;
            }
        }
    }
}
