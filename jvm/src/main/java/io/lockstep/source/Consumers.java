package io.lockstep.source;

import io.lockstep.LockstepException;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Kafka consumers that read fixed partitions from given offsets and never jump: a jump would be a silent loss. */
final class Consumers {
    private Consumers() {}

    static KafkaConsumer<byte[], byte[]> of(Map<String, Object> settings, Collection<TopicPartition> partitions) {
        Map<String, Object> kafka = new HashMap<>(settings);
        kafka.put("enable.auto.commit", "false");
        kafka.put("auto.offset.reset", "none");
        kafka.remove("group.id");
        kafka.putIfAbsent("max.poll.records", "2000");
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(kafka, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.assign(partitions);
        return consumer;
    }

    static LockstepException outOfRange(KafkaConsumer<byte[], byte[]> consumer, OffsetOutOfRangeException error) {
        Map.Entry<TopicPartition, Long> one =
                error.offsetOutOfRangePartitions().entrySet().iterator().next();
        TopicPartition partition = one.getKey();
        long at = one.getValue();
        Duration patience = Duration.ofSeconds(10);
        long first = consumer.beginningOffsets(List.of(partition), patience).get(partition);
        long end = consumer.endOffsets(List.of(partition), patience).get(partition);
        String what = "partition " + partition.partition() + " of topic \"" + partition.topic() + "\" has offsets "
                + first + " to " + end + ", this site needs " + at;
        return first > at
                ? new LockstepException(
                        what + ": retention has removed " + (first - at) + " records that were not processed",
                        "take a checkpoint of a site that is ahead, or start a new run; lengthen retention.ms",
                        error)
                : new LockstepException(
                        what + ": the log lost records that were there",
                        "restore the topic, or start a new run under another name",
                        error);
    }
}
