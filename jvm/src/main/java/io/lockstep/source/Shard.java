package io.lockstep.source;

import io.lockstep.order.OrderRecord;
import io.lockstep.order.Place;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What the task of one shard has to read in one batch: from one place to another; in real time there is no end.
 *
 * @param reader tells consumers of different queries in one JVM apart
 * @param queues those that the run began with
 * @param growing the ones of them whose topics may grow
 * @param until null in real time
 * @param skips offsets that the run agreed to leave out, because no site can process them
 * @param keyed whether the query takes it that the records of a key, and of no key, are in one shard
 */
record Shard(
        String reader,
        Group group,
        int shard,
        List<TopicPartition> queues,
        Set<OrderRecord.Queue> growing,
        int seal,
        Place from,
        Place until,
        Map<String, Object> kafka,
        Map<TopicPartition, Set<Long>> skips,
        boolean keyed)
        implements InputPartition {
    String key() {
        return reader + "\n" + group.name() + "\n" + shard;
    }
}
