package io.lockstep.source;

import io.lockstep.LockstepException;
import io.lockstep.Settings;
import io.lockstep.checkpoint.LocalFiles;
import io.lockstep.order.Marks;
import io.lockstep.order.Place;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.spark.deploy.SparkHadoopUtil;

/**
 * Drops the duplicates of stage topics, which all sites write to, in log order (design rule 4).
 *
 * <p>What was accepted belongs to the position. In real time it travels in Spark's offset. In micro-batch the end of a
 * batch is agreed on before it is read, so each batch leaves its marks in a file beside the checkpoint.
 */
final class Stage {
    private static final String IDENTITY = "ls";
    private static final int KEPT = 10;

    private final Shard shard;
    private final Map<TopicPartition, Marks> marks = new HashMap<>();

    Stage(Shard shard) {
        this.shard = shard;
        List<TopicPartition> queues = shard.queues();
        Marks[] before = shard.from() instanceof Place.Deduplicated place ? place.marks() : null;
        for (int queue = 0; queue < queues.size(); queue++) {
            if (shard.group().deduplicated(queues.get(queue).topic())) {
                marks.put(queues.get(queue), before == null ? new Marks() : before[queue].copy());
            }
        }
        if (!marks.isEmpty() && shard.seal() > 0) {
            read(file(shard.seal() - 1));
        }
    }

    boolean accepts(ConsumerRecord<byte[], byte[]> record) {
        if (marks.isEmpty()) {
            return true;
        }
        Marks queue = marks.get(new TopicPartition(record.topic(), record.partition()));
        if (queue == null) {
            return true;
        }
        Header identity = record.headers().lastHeader(IDENTITY);
        return identity != null && queue.accept(identity.value());
    }

    /** Whether a site wrote it: heartbeats and what others wrote by mistake have no identity. */
    static boolean isOutput(ConsumerRecord<byte[], byte[]> record) {
        return record.headers().lastHeader(IDENTITY) != null;
    }

    /** The place with what was accepted before it. */
    Place place(Place at) {
        if (marks.isEmpty()) {
            return at;
        }
        return new Place.Deduplicated(at, inOrder());
    }

    /** A sealed batch was read to its end. */
    void ended() {
        if (marks.isEmpty() || shard.seal() == Position.NO_SEAL) {
            return;
        }
        Path file = file(shard.seal());
        try {
            String text = new Place.Deduplicated(new Place.Offset(0), inOrder()).json().toString();
            LocalFiles files = new LocalFiles(file.getParent(), SparkHadoopUtil.get().conf());
            files.write(file, text.getBytes(StandardCharsets.UTF_8));
            files.delete(file(shard.seal() - KEPT));
        } catch (IOException error) {
            throw new LockstepException("cannot write " + file + ": " + error.getMessage(), "look at the disk", error);
        }
    }

    private void read(Path file) {
        try (InputStream in =
                new LocalFiles(file.getParent(), SparkHadoopUtil.get().conf()).open(file)) {
            Place.Deduplicated place = (Place.Deduplicated)
                    Place.parse(Settings.JSON.readTree(in), shard.queues().size(), false);
            for (int queue = 0; queue < shard.queues().size(); queue++) {
                if (place.marks()[queue] != null) {
                    marks.put(shard.queues().get(queue), place.marks()[queue]);
                }
            }
        } catch (IOException error) {
            throw new LockstepException(
                    "the checkpoint lacks " + file + ": " + error.getMessage(),
                    "take a checkpoint of another site, or start a new run",
                    error);
        }
    }

    private Marks[] inOrder() {
        return shard.queues().stream()
                .map(queue -> marks.containsKey(queue) ? marks.get(queue).copy() : null)
                .toArray(Marks[]::new);
    }

    private Path file(int seal) {
        return new Path(shard.reader(), "marks/" + shard.shard() + "-" + seal);
    }
}
