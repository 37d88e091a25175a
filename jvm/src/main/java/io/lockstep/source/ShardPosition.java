package io.lockstep.source;

import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/** What the task of one shard reports at the end of a real-time batch. */
record ShardPosition(int shard, long next) implements PartitionOffset {}
