package io.lockstep.sink;

import com.fasterxml.jackson.databind.JsonNode;
import io.lockstep.Vectors;
import java.util.HexFormat;
import org.apache.kafka.common.utils.Utils;

public final class IdentityTest {
    private IdentityTest() {}

    public static void murmur2(JsonNode vector) {
        int hash = Utils.murmur2(bytes(vector.path("data")));
        Vectors.equal("murmur2 of " + vector.path("data"), vector.path("hash").asLong(), Integer.toUnsignedLong(hash));
    }

    public static void encode(JsonNode vector) {
        Vectors.equal("identity", vector.path("hex").asText(), HexFormat.of().formatHex(identity(vector)));
    }

    public static void partition(JsonNode vector) {
        byte[] key = vector.path("key").isNull() ? null : bytes(vector.path("key"));
        int partition = Identity.partition(key, identity(vector.path("identity")), vector.path("count").asInt());
        Vectors.equal("partition of " + vector, vector.path("partition").asInt(), partition);
    }

    private static byte[] identity(JsonNode vector) {
        return Identity.encode(
                (byte) vector.path("engine").asInt(),
                vector.path("shard").asInt(),
                vector.path("reducer").asInt(),
                vector.path("a").asLong(),
                vector.path("b").asInt());
    }

    private static byte[] bytes(JsonNode hex) {
        return HexFormat.of().parseHex(hex.asText());
    }
}
