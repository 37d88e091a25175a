package io.lockstep.source;

import io.lockstep.LockstepException;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What a source asks Kafka about topics. What may pass by itself comes back as a {@link RetriableException}. */
final class Topics implements AutoCloseable {
    static final Duration PATIENCE = Duration.ofSeconds(60);

    private final Admin admin;
    private final Map<String, KafkaFuture<Map<String, TopicDescription>>> looks = new ConcurrentHashMap<>();

    Topics(Map<String, Object> kafka) {
        admin = Admin.create(kafka);
    }

    /** Create a topic with one partition that keeps everything, unless it is there. */
    void createKept(String name) {
        NewTopic topic = new NewTopic(name, 1, (short) -1)
                .configs(Map.of("cleanup.policy", "delete", "retention.ms", "-1", "retention.bytes", "-1"));
        try {
            answer(admin.createTopics(List.of(topic)).all());
        } catch (TopicExistsException error) {
            return;
        } catch (RetriableException error) {
            throw unreachable(error);
        }
    }

    /** The topics as they are now, each with where a run that begins now would begin. */
    Map<String, Seals.Input> inputs(Collection<String> names, boolean fromLatest) {
        try {
            Map<String, TopicDescription> found = described(names, describe(names));
            Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
            found.forEach((topic, description) -> description
                    .partitions()
                    .forEach(one -> asked.put(
                            new TopicPartition(topic, one.partition()),
                            fromLatest ? OffsetSpec.latest() : OffsetSpec.earliest())));
            Map<String, Seals.Input> inputs = new TreeMap<>();
            found.forEach((topic, description) -> inputs.put(
                    topic,
                    new Seals.Input(description.topicId().toString(), new long[description.partitions().size()])));
            answer(admin.listOffsets(asked).all())
                    .forEach((one, info) -> inputs.get(one.topic()).origin()[one.partition()] = info.offset());
            return inputs;
        } catch (RetriableException error) {
            throw unreachable(error);
        }
    }

    /** Where the partitions end now. */
    Map<TopicPartition, Long> ends(Collection<TopicPartition> partitions) {
        Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
        partitions.forEach(one -> asked.put(one, OffsetSpec.latest()));
        Map<TopicPartition, Long> ends = new HashMap<>();
        answer(admin.listOffsets(asked).all()).forEach((one, info) -> ends.put(one, info.offset()));
        return ends;
    }

    /** Ask for the topic's description, for {@link #seen}: the answer comes while Spark plans. */
    void look(String topic) {
        looks.put(topic, describe(List.of(topic)));
    }

    /** What the last look found. */
    TopicDescription seen(String topic) {
        return described(List.of(topic), looks.get(topic)).get(topic);
    }

    @Override
    public void close() {
        admin.close(Duration.ofSeconds(1));
    }

    private KafkaFuture<Map<String, TopicDescription>> describe(Collection<String> names) {
        return admin.describeTopics(names).allTopicNames();
    }

    private static Map<String, TopicDescription> described(
            Collection<String> names, KafkaFuture<Map<String, TopicDescription>> future) {
        try {
            return answer(future);
        } catch (UnknownTopicOrPartitionException error) {
            throw new LockstepException(
                    "there is no input topic " + String.join(" or ", names), "create it, or correct the pipeline", error);
        }
    }

    private static <T> T answer(KafkaFuture<T> future) {
        try {
            return future.get(PATIENCE.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof RuntimeException cause) {
                throw cause;
            }
            throw new IllegalStateException(error.getCause());
        } catch (TimeoutException error) {
            throw new org.apache.kafka.common.errors.TimeoutException("no answer from Kafka", error);
        } catch (InterruptedException error) {
            throw new InterruptException(error);
        }
    }

    private static LockstepException unreachable(RuntimeException error) {
        return new LockstepException(
                "Kafka does not answer: " + error.getMessage(), "check kafka.bootstrap.servers and the broker", error);
    }
}
