package io.lockstep.source;

import io.lockstep.order.Place;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/** What the task of one shard reports at the end of a real-time batch. */
record ShardPosition(int shard, Place place) implements PartitionOffset {}
