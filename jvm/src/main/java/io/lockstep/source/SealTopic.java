package io.lockstep.source;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.lockstep.LockstepException;
import io.lockstep.Settings;
import io.lockstep.order.OrderRecord;
import io.lockstep.order.Place;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A run's seals topic: {@link Seals} kept up to date from Kafka, and proposals appended to it.
 *
 * <p>One for each query, shared by its sources. It is read to its end when it is opened. In micro-batch a thread
 * then follows it, and proposes the next seal when Spark asks for a batch that is not sealed and there is new input;
 * after the last input a few more ({@code idleSeals}), so that watermarks pass. Not before: what is sealed early
 * waits for the batch that runs. All sites propose; the topic's order decides, so none is needed.
 */
final class SealTopic implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(SealTopic.class);
    private static final Duration POLL = Duration.ofMillis(100);
    /** How long Spark waits for a seal that it asks for. */
    private static final long ANSWER_MS = 500;
    /** After this time a proposal that was not read back counts as lost. */
    private static final long REPEAT_MS = 1_000;
    private static final Map<String, SealTopic> OPEN = new HashMap<>();

    private final String key;
    private final Map<String, Object> settings;
    private final String site;
    private final List<Group> groups;
    private final boolean liveRobin;
    private final boolean fromLatest;
    private final JsonNode fixedOrigin;
    private final int idleSeals;
    private final long mostRecords;
    private final TopicPartition partition;
    private final Topics kafka;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final KafkaProducer<byte[], byte[]> producer;
    private final Seals seals;
    private final Map<String, Frontier> frontiers = new HashMap<>();

    private int users;
    private Thread follower;
    private volatile boolean closed;
    private volatile RuntimeException failure;
    private int idle;
    private boolean wanted;
    private final Set<String> asked = new HashSet<>();
    private int admitted;
    private int finished = Position.NO_SEAL;

    /** @param query tells queries in one JVM apart */
    static SealTopic open(Settings settings, String query) {
        synchronized (OPEN) {
            SealTopic topic = OPEN.get(query);
            if (topic == null) {
                topic = new SealTopic(settings, query);
                try {
                    topic.begin();
                } catch (RuntimeException error) {
                    topic.release();
                    throw error;
                }
                OPEN.put(query, topic);
            }
            topic.users++;
            return topic;
        }
    }

    private SealTopic(Settings settings, String key) {
        this.key = key;
        this.settings = settings.kafka();
        this.site = settings.text("site", "");
        this.partition = new TopicPartition(settings.required("seals"), 0);
        this.groups = Group.parseAll(
                settings.text("inputs", settings.required("topic")), settings.text("orderTopics", ""));
        this.seals = new Seals(groups);
        this.liveRobin = settings.text("order", "").equals("liverobin");
        this.fromLatest = switch (settings.text("startingOffsets", "earliest")) {
            case "earliest" -> false;
            case "latest" -> true;
            default -> throw new LockstepException(
                    "startingOffsets is " + settings.text("startingOffsets", ""), "use earliest or latest");
        };
        this.fixedOrigin = json(settings.text("origin", "{}"));
        this.idleSeals = settings.integer("idleSeals", 0);
        this.mostRecords = settings.integer("maxRecordsPerSeal", 1_000_000);
        this.kafka = new Topics(settings.kafka());
        Map<String, Object> reading = settings.kafka();
        reading.put("enable.auto.commit", "false");
        reading.put("auto.offset.reset", "earliest");
        reading.remove("group.id");
        this.consumer = new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        Map<String, Object> writing = settings.kafka();
        writing.put("acks", "all");
        writing.put("enable.idempotence", "true");
        this.producer = new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer());
    }

    synchronized Seals.Input input(String topic) {
        return seals.input(topic);
    }

    synchronized Map<Integer, Set<Long>> skips(String topic) {
        return seals.skips(topic);
    }

    /** Of the queues that the run began with, those whose topics may grow. */
    synchronized Set<OrderRecord.Queue> growing(Group group) {
        return liveRobin ? group.growing(seals::partitions) : Set.of();
    }

    synchronized Place[] end(Group group, int number) {
        return seals.end(group, number);
    }

    synchronized int shards(Group group) {
        return seals.shards(group);
    }

    synchronized List<TopicPartition> queues(Group group, int shard) {
        return seals.queues(group, shard);
    }

    /**
     * The number of the micro-batch that a source that has finished {@code have} may plan: {@code have + 1}, or
     * {@code have} as long as that one is not sealed.
     *
     * <p>Spark asks the sources of a query one after the other. They must all get the same answer, else one batch
     * would pair sealed ends of different batches: so the answer is fixed when a round of questions begins, and
     * a round ends when a source asks again.
     */
    synchronized int admit(String source, int have) {
        if (failure != null) {
            throw failure;
        }
        if (follower == null) {
            follower = new Thread(this::follow, "lockstep-seals-" + partition.topic());
            follower.setDaemon(true);
            follower.start();
        }
        if (asked.contains(source)) {
            asked.clear();
        }
        finished = have;
        if (asked.isEmpty()) {
            awaitSeal();
            admitted = seals.count();
        }
        asked.add(source);
        return Math.min(have + 1, Math.max(admitted - 1, have));
    }

    /** Ask what {@link #verify} will judge. */
    void look(String topic) {
        kafka.look(topic);
    }

    /** Fail when a topic of an input is not the one that the run began with. An unreachable broker says nothing. */
    void verify(Group group, String topic) {
        TopicDescription now;
        try {
            now = kafka.seen(topic);
        } catch (RetriableException error) {
            LOG.warn("cannot look at topic {} now: {}", topic, error.toString());
            return;
        }
        Seals.Input then = input(topic);
        if (!now.topicId().toString().equals(then.id())) {
            throw new LockstepException(
                    "topic \"" + topic + "\" was deleted and created again since this run began",
                    "its offsets mean other records now: start a new run under another name");
        }
        boolean grows = growing(group).stream().anyMatch(queue -> queue.topic().equals(topic));
        if (now.partitions().size() != then.origin().length && !grows) {
            throw new LockstepException(
                    "topic \"" + topic + "\" has " + now.partitions().size() + " partitions, this run began with "
                            + then.origin().length,
                    "keys have moved between partitions: start a new run under another name");
        }
    }

    @Override
    public void close() {
        synchronized (OPEN) {
            if (--users > 0) {
                return;
            }
            OPEN.remove(key);
        }
        release();
    }

    private void release() {
        closed = true;
        Thread running = follower;
        if (running != null) {
            running.interrupt();
            try {
                running.join(5_000);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
        frontiers.values().forEach(Frontier::close);
        consumer.close(Duration.ofSeconds(1));
        producer.close(Duration.ofSeconds(1));
        kafka.close();
    }

    private void begin() {
        kafka.createKept(partition.topic());
        consumer.assign(List.of(partition));
        consumer.seekToBeginning(List.of(partition));
        readToEnd();
        if (!seals.begun()) {
            List<String> topics = groups.stream().flatMap(group -> group.topics().stream()).toList();
            Map<String, Seals.Input> found = kafka.inputs(topics, fromLatest);
            found.replaceAll((topic, input) -> fixedOrigin.has(topic)
                    ? new Seals.Input(input.id(), Seals.longs(fixedOrigin.path(topic)))
                    : input);
            propose(Seals.originRecord(found));
            readToEnd();
        }
        if (!seals.begun()) {
            throw new LockstepException(
                    "the seals topic " + partition.topic() + " does not give back what was written to it",
                    "check its retention: it must keep everything");
        }
        groups.forEach(group -> group.topics().forEach(seals::input));
    }

    private void readToEnd() {
        long end = consumer.endOffsets(List.of(partition), Topics.PATIENCE).get(partition);
        while (consumer.position(partition, Topics.PATIENCE) < end) {
            read(POLL);
        }
    }

    private void read(Duration patience) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(patience)) {
            JsonNode node;
            try {
                node = Settings.JSON.readTree(record.value());
            } catch (IOException error) {
                throw new LockstepException(
                        "record " + record.offset() + " of " + partition.topic() + " is not JSON",
                        "only Lockstep may write to this topic",
                        error);
            }
            synchronized (this) {
                seals.apply(node);
            }
        }
    }

    /** A short while: Spark asks again at its next trigger, and other sites may have sealed it until then. */
    private synchronized void awaitSeal() {
        if (sealedAhead()) {
            return;
        }
        wanted = true;
        consumer.wakeup();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ANSWER_MS);
        for (long left = ANSWER_MS; wanted && left > 0; left = (deadline - System.nanoTime()) / 1_000_000) {
            try {
                wait(left);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt(); // Spark stops the query, and sees it at its own next wait
                return;
            }
        }
        if (failure != null) {
            throw failure;
        }
    }

    private boolean sealedAhead() {
        return seals.count() - 1 > finished;
    }

    private void follow() {
        try {
            long proposedNanos = 0;
            while (!closed) {
                try {
                    read(POLL);
                } catch (WakeupException error) {
                    LOG.trace("a batch is asked for");
                }
                long now = System.nanoTime();
                if (answered()) {
                    proposedNanos = 0;
                } else if (proposedNanos == 0 || now - proposedNanos >= TimeUnit.MILLISECONDS.toNanos(REPEAT_MS)) {
                    boolean proposed = proposeSeal();
                    proposedNanos = proposed ? now : 0;
                    if (!proposed) {
                        answer();
                    }
                }
            }
        } catch (RuntimeException error) {
            if (!closed) {
                LOG.error("following {} failed", partition.topic(), error);
                failure = error;
                answer();
            }
        }
    }

    /** Whether nobody waits for a seal. */
    private synchronized boolean answered() {
        if (wanted && sealedAhead()) {
            answer();
        }
        return !wanted;
    }

    private synchronized void answer() {
        wanted = false;
        notifyAll();
    }

    private boolean proposeSeal() {
        Map<String, Place[]> before = new HashMap<>();
        Map<String, Place[]> ends = new HashMap<>();
        int number;
        int shards = 0;
        synchronized (this) {
            number = seals.count();
            for (Group group : groups) {
                before.put(group.name(), seals.end(group, number - 1));
                shards += before.get(group.name()).length;
            }
        }
        // Shared among all shards, so that a backlog becomes many batches of bounded size.
        long most = Math.max(1, mostRecords / Math.max(1, shards));
        boolean grew = false;
        try {
            for (Group group : groups) {
                Place[] from = before.get(group.name());
                Place[] end = group.merged() ? frontier(group).ends(from, most) : offsets(group, from, most);
                ends.put(group.name(), end);
                for (int shard = 0; shard < end.length; shard++) {
                    grew |= end[shard].upcoming() > from[shard].upcoming();
                }
            }
        } catch (RetriableException error) {
            LOG.warn("cannot ask for end offsets now: {}", error.toString());
            return false;
        }
        idle = grew ? 0 : idle + 1;
        if (idle > idleSeals || (number == 0 && !grew)) {
            return false;
        }
        propose(Seals.sealRecord(number, ends));
        return true;
    }

    private Frontier frontier(Group group) {
        return frontiers.computeIfAbsent(group.name(), name -> new Frontier(settings, group, growing(group)));
    }

    private Place[] offsets(Group group, Place[] from, long most) {
        String topic = group.topics().get(0);
        List<TopicPartition> asked = new ArrayList<>();
        for (int shard = 0; shard < from.length; shard++) {
            asked.add(new TopicPartition(topic, shard));
        }
        Place[] ends = from.clone();
        kafka.ends(asked).forEach((one, latest) -> {
            long at = from[one.partition()].upcoming();
            ends[one.partition()] = new Place.Offset(Math.max(at, Math.min(latest, at + most)));
        });
        return ends;
    }

    private static JsonNode json(String text) {
        try {
            return Settings.JSON.readTree(text);
        } catch (IOException error) {
            throw new LockstepException("the option origin is not JSON: " + text, "leave it out", error);
        }
    }

    private void propose(ObjectNode record) {
        byte[] value = record.put("site", site).toString().getBytes(StandardCharsets.UTF_8);
        producer.send(new ProducerRecord<>(partition.topic(), partition.partition(), null, value));
        producer.flush();
    }
}
