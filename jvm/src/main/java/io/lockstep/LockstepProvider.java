package io.lockstep;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Makes {@code format("lockstep")} known to Spark, as a source and as a sink. */
public final class LockstepProvider implements TableProvider, DataSourceRegister {
    @Override
    public String shortName() {
        return "lockstep";
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return LockstepTable.INPUT;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new LockstepTable();
    }
}
