package io.lockstep.sink;

import io.lockstep.LockstepException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/**
 * Looks once, on the driver, whether the output topic can take what will be written: the producer itself would wait
 * for it without end. Partitions that were added later stay empty, since the run's count is frozen (design rule 7).
 */
final class OutputTopic {
    private static final Map<String, Integer> SEEN = new ConcurrentHashMap<>();

    private OutputTopic() {}

    /** How large a record of the topic may be, in bytes. */
    static int largestRecord(String topic, int partitions, Map<String, Object> kafka) {
        String key = kafka.get("bootstrap.servers") + "\n" + topic + "\n" + partitions;
        return SEEN.computeIfAbsent(key, first -> look(topic, partitions, kafka));
    }

    private static int look(String topic, int partitions, Map<String, Object> kafka) {
        try (Admin admin = Admin.create(kafka)) {
            int there = admin.describeTopics(List.of(topic))
                    .allTopicNames()
                    .get(60, TimeUnit.SECONDS)
                    .get(topic)
                    .partitions()
                    .size();
            if (there < partitions) {
                throw new LockstepException(
                        "output topic \"" + topic + "\" has " + there + " partitions, this run began with " + partitions,
                        "it was created again: start a new run under another name");
            }
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            ConfigEntry limit = admin.describeConfigs(List.of(resource))
                    .all()
                    .get(60, TimeUnit.SECONDS)
                    .get(resource)
                    .get(TopicConfig.MAX_MESSAGE_BYTES_CONFIG);
            return Integer.parseInt(limit.value());
        } catch (ExecutionException error) {
            boolean absent = error.getCause() instanceof UnknownTopicOrPartitionException;
            throw new LockstepException(
                    absent ? "there is no output topic \"" + topic + "\"" : "Kafka does not answer: " + error.getCause(),
                    absent ? "create it" : "check kafka.bootstrap.servers and the broker",
                    error);
        } catch (TimeoutException error) {
            throw new LockstepException("Kafka does not answer", "check kafka.bootstrap.servers and the broker", error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(error);
        }
    }
}
