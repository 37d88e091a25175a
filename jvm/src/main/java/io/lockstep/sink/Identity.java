package io.lockstep.sink;

import java.nio.ByteBuffer;
import org.apache.kafka.common.utils.Utils;

/**
 * The identity of an output and the partition it goes to (design rules 6 and 7). The Python twin is
 * {@code lockstep.spark.identity}; shared vectors hold both to the same bytes.
 */
final class Identity {
    static final String HEADER = "ls";
    static final String SITE_HEADER = "lss";
    static final byte VERSION = 1;
    static final byte REALTIME = 0;
    static final byte MICROBATCH = 1;
    static final int NO_SHARD = -1;
    static final int SIZE = 22;

    private Identity() {}

    static byte[] encode(byte engine, int shard, int reducer, long a, int b) {
        return ByteBuffer.allocate(SIZE)
                .put(VERSION)
                .put(engine)
                .putInt(shard)
                .putInt(reducer)
                .putLong(a)
                .putInt(b)
                .array();
    }

    static int partition(byte[] key, byte[] identity, int count) {
        return Utils.toPositive(Utils.murmur2(key == null ? identity : key)) % count;
    }
}
