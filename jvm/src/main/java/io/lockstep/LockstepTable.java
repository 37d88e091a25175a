package io.lockstep;

import io.lockstep.sink.OutputWrite;
import io.lockstep.source.ShardStream;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** One input topic to read in its order, or the output topic that all sites write to. */
final class LockstepTable implements SupportsRead, SupportsWrite {
    /** The columns of Spark's own Kafka source, then the record's place in its shard's order. */
    static final StructType INPUT = new StructType()
            .add("key", DataTypes.BinaryType)
            .add("value", DataTypes.BinaryType)
            .add("topic", DataTypes.StringType)
            .add("partition", DataTypes.IntegerType)
            .add("offset", DataTypes.LongType)
            .add("timestamp", DataTypes.TimestampType)
            .add("timestampType", DataTypes.IntegerType)
            .add("headers", new ArrayType(
                    new StructType().add("key", DataTypes.StringType).add("value", DataTypes.BinaryType), true))
            .add("_shard", DataTypes.IntegerType)
            .add("_sn", DataTypes.LongType);

    @Override
    public String name() {
        return "lockstep";
    }

    @Override
    @SuppressWarnings("deprecation") // the replacement asks for names of columns and finds them by itself
    public StructType schema() {
        return INPUT;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return Set.of(
                TableCapability.MICRO_BATCH_READ, TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return () -> new Scan() {
            @Override
            public StructType readSchema() {
                return INPUT;
            }

            @Override
            public String description() {
                return "lockstep " + options.get("topic");
            }

            @Override
            public MicroBatchStream toMicroBatchStream(String checkpoint) {
                return new ShardStream(new Settings(options), checkpoint);
            }
        };
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new OutputBuilder(info);
    }

    /** Update mode appends: every row is an output of its own, and its identity says which. */
    private record OutputBuilder(LogicalWriteInfo info) implements SupportsStreamingUpdateAsAppend {
        @Override
        public Write build() {
            return new OutputWrite(new Settings(info.options()), info.schema());
        }
    }
}
