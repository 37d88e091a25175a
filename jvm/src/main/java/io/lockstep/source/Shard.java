package io.lockstep.source;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What the task of one shard has to read in one batch: {@code [from, until)}; in real time there is no end.
 *
 * @param reader tells consumers of different queries in one JVM apart
 * @param skips offsets that the run agreed to leave out, because no site can process them
 */
record Shard(
        String reader,
        String topic,
        int shard,
        int seal,
        long from,
        long until,
        Map<String, Object> kafka,
        Set<Long> skips)
        implements InputPartition {
    static final long NO_END = Long.MAX_VALUE;
}
