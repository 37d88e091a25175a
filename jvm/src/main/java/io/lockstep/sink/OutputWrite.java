package io.lockstep.sink;

import io.lockstep.LockstepException;
import io.lockstep.Settings;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * The output topic that all sites of a run write to.
 *
 * <p>Columns: {@code value} and, as wanted, {@code key} (binary both); in real time {@code _sn} and
 * {@code _shard} of the input that caused the row. In micro-batch Spark sorts each task's rows for us by all
 * columns, {@code _sn} first, so that a row has the same ordinal on every site.
 */
public final class OutputWrite implements RequiresDistributionAndOrdering, StreamingWrite {
    private static final List<String> SORTED = List.of("_sn", "_shard", "key", "value");

    private final OutputWriter.Factory factory;
    private final StructType schema;

    public OutputWrite(Settings settings, StructType schema) {
        this.schema = schema;
        boolean realTime =
                switch (settings.required("engine")) {
                    case "realtime" -> true;
                    case "microbatch" -> false;
                    default -> throw new LockstepException(
                            "engine is " + settings.required("engine"), "use realtime or microbatch");
                };
        String topic = settings.required("topic");
        int partitions = Integer.parseInt(settings.required("partitions"));
        int largest = OutputTopic.largestRecord(topic, partitions, settings.kafka());
        factory = new OutputWriter.Factory(
                topic,
                partitions,
                settings.required("site"),
                settings.text("lastWords", ""),
                realTime,
                column("key", DataTypes.BinaryType, false),
                column("value", DataTypes.BinaryType, true),
                column("_sn", DataTypes.LongType, realTime),
                column("_shard", DataTypes.IntegerType, realTime),
                settings.flag("stage", false),
                OutputProducer.settings(settings.kafka(), realTime, largest));
    }

    @Override
    public StreamingWrite toStreaming() {
        return this;
    }

    @Override
    public String description() {
        return "lockstep " + factory.topic();
    }

    @Override
    public Distribution requiredDistribution() {
        return Distributions.unspecified();
    }

    @Override
    public SortOrder[] requiredOrdering() {
        if (factory.realTime()) {
            return new SortOrder[0];
        }
        return SORTED.stream()
                .filter(name -> Arrays.asList(schema.fieldNames()).contains(name))
                .map(name -> Expressions.sort(Expressions.column(name), SortDirection.ASCENDING))
                .toArray(SortOrder[]::new);
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
        return factory;
    }

    @Override
    public boolean useCommitCoordinator() {
        return false; // one attempt only, and repeated outputs are dropped by their identity
    }

    @Override
    public void commit(long batch, WriterCommitMessage[] messages) {}

    @Override
    public void abort(long batch, WriterCommitMessage[] messages) {}

    private int column(String name, DataType type, boolean required) {
        int index = Arrays.asList(schema.fieldNames()).indexOf(name);
        if (index < 0 ? required : !schema.apply(index).dataType().equals(type)) {
            throw new LockstepException(
                    "the output needs a column " + name + " of type " + type.simpleString() + ", it has "
                            + schema.simpleString(),
                    "see docs/spark.md on what a pipeline returns");
        }
        return index;
    }
}
