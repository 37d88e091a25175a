package io.lockstep.sink;

import io.lockstep.LockstepException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The JVM's Kafka producer, kept across batches. It leaves no hole (design rule 8): idempotent, acks=all, and it
 * waits for a broker without end.
 *
 * <p>Should a record be refused for good, the whole JVM ends at once, in Kafka's own thread, before that thread
 * can send what is queued behind it: a reader would take the later record and then refuse the earlier one when
 * the restarted site writes it again. (What is in flight behind it is refused by the broker, whose sequence
 * numbers have no gap.)
 */
final class OutputProducer {
    private static final int REFUSED = 70;
    private static final int ENDLESS_SECONDS = 3;
    private static final int MANY_SPLITS = 5;
    private static final Map<Map<String, Object>, OutputProducer> KEPT = new ConcurrentHashMap<>();

    private final KafkaProducer<byte[], byte[]> producer;
    private final Path lastWords;
    private volatile Exception refused;

    static OutputProducer get(Map<String, Object> settings, String lastWords) {
        return KEPT.computeIfAbsent(settings, key -> new OutputProducer(key, lastWords));
    }

    /**
     * Kafka's settings for a sink: the user's own, and over them those that keep it free of holes.
     *
     * @param largest what the topic takes. No batch is larger: a refused one would be split and sent for ever
     *     (Kafka's producer splits by its own batch.size, not by the topic's limit).
     */
    static Map<String, Object> settings(Map<String, Object> own, boolean realTime, int largest) {
        Map<String, Object> settings = new HashMap<>(own);
        settings.putIfAbsent("linger.ms", realTime ? "0" : "5");
        atMost(settings, "batch.size", realTime ? 16_384 : 131_072, largest);
        atMost(settings, "max.request.size", 1_048_576, largest);
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        settings.put("max.in.flight.requests.per.connection", "5");
        settings.put("retries", Integer.toString(Integer.MAX_VALUE));
        settings.put("delivery.timeout.ms", Integer.toString(Integer.MAX_VALUE));
        settings.put("max.block.ms", Long.toString(Long.MAX_VALUE));
        settings.remove("transactional.id");
        return settings;
    }

    private static void atMost(Map<String, Object> settings, String name, int otherwise, int limit) {
        int wanted = settings.get(name) == null ? otherwise : Integer.parseInt(settings.get(name).toString());
        settings.put(name, Integer.toString(Math.min(wanted, limit)));
    }

    private OutputProducer(Map<String, Object> settings, String lastWords) {
        this.producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        this.lastWords = lastWords.isEmpty() ? null : Path.of(lastWords);
        Thread watch = new Thread(this::watchSplits, "lockstep-splits");
        watch.setDaemon(true);
        watch.start();
    }

    void send(ProducerRecord<byte[], byte[]> record) {
        Thread writer = Thread.currentThread();
        producer.send(record, (written, error) -> {
            if (error != null) {
                refused = error;
                if (Thread.currentThread() != writer) {
                    die(why(record, error));
                }
            }
        });
        if (refused != null) { // before anything was sent: this task alone fails, and with it the query
            throw new LockstepException(why(record, refused), "correct the topic or the pipeline", refused);
        }
    }

    void flush() {
        producer.flush();
    }

    /**
     * A batch that is too large for its topic is split, and refused again, for ever, if the topic's limit was lowered
     * while this site ran: the parts are cut by batch.size, which knows the old one.
     */
    private void watchSplits() {
        double before = 0;
        int seconds = 0;
        try {
            while (seconds < ENDLESS_SECONDS) {
                Thread.sleep(1000);
                double splits = splits();
                seconds = splits >= before + MANY_SPLITS ? seconds + 1 : 0;
                before = splits;
            }
        } catch (InterruptedException ended) {
            return;
        }
        die("Kafka refused an output: it is larger than its topic's max.message.bytes, which was lowered meanwhile");
    }

    private double splits() {
        return producer.metrics().entrySet().stream()
                .filter(one -> one.getKey().name().equals("batch-split-total"))
                .mapToDouble(one -> (Double) one.getValue().metricValue())
                .sum();
    }

    private void die(String why) {
        String words = Instant.now() + " " + why;
        System.err.println(LockstepException.MARKER + words);
        try {
            if (lastWords != null) {
                Files.writeString(lastWords, words + "\n");
            }
        } catch (IOException unwritten) {
            System.err.println("cannot write " + lastWords + ": " + unwritten);
        } finally {
            Runtime.getRuntime().halt(REFUSED);
        }
    }

    private static String why(ProducerRecord<byte[], byte[]> record, Exception error) {
        return "Kafka refused an output for topic \"" + record.topic() + "\", partition " + record.partition() + ": "
                + error.getMessage();
    }
}
