package io.lockstep;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The options of {@code format("lockstep")}, read in one place. Kafka's own pass through as {@code kafka.*}.
 */
public final class Settings {
    public static final ObjectMapper JSON = new ObjectMapper();

    private static final String KAFKA = "kafka.";

    /** A client asks again soon where a dead broker's partitions are: by default its pauses grow to a second. */
    private static final Map<String, String> IMPATIENCE = Map.of(
            "retry.backoff.ms", "50",
            "retry.backoff.max.ms", "100",
            "reconnect.backoff.ms", "50",
            "reconnect.backoff.max.ms", "500");

    private final CaseInsensitiveStringMap options;

    public Settings(CaseInsensitiveStringMap options) {
        this.options = options;
    }

    public String required(String name) {
        String value = options.get(name);
        if (value == null || value.isEmpty()) {
            throw new LockstepException(
                    "format(\"lockstep\") needs the option \"" + name + "\"",
                    "start the pipeline through lockstep, which sets it");
        }
        return value;
    }

    public String text(String name, String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    public int integer(String name, int otherwise) {
        return options.getInt(name, otherwise);
    }

    public boolean flag(String name, boolean otherwise) {
        return options.getBoolean(name, otherwise);
    }

    /** Kafka's client settings, without the prefix: ours, and over them the user's own. */
    public Map<String, Object> kafka() {
        required("kafka.bootstrap.servers");
        Map<String, Object> settings = new HashMap<>(IMPATIENCE);
        options.asCaseSensitiveMap().forEach((name, value) -> {
            if (name.toLowerCase(java.util.Locale.ROOT).startsWith(KAFKA)) {
                settings.put(name.substring(KAFKA.length()), value);
            }
        });
        return settings;
    }
}
