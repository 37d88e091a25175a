package io.lockstep.order;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;

/**
 * Algorithm 1 of the paper over queues with heartbeats in band: which queue is next. The Python twin is
 * {@code lockstep.order.inband.InBandMerge}; generated stories hold both to the same answers.
 *
 * <p>A queue is active while no other has a lower last heartbeat; active queues take turns. What is not a heartbeat
 * above the last one is void and takes no turn.
 */
public final class InBandMerge {
    private static final long NONE = -1;
    private static final String KIND = "heartbeat";

    private final long[] inputs;
    private final long[] beats;
    private int next;
    private long sn;

    public InBandMerge(InBandPlace from) {
        inputs = from.inputs().clone();
        beats = from.beats().clone();
        next = from.next();
        sn = from.sn();
    }

    /** The queue whose record is needed now. */
    public int next() {
        return next;
    }

    /** The {@code _sn} of the next event. */
    public long upcoming() {
        return sn;
    }

    /** The next queue's record is an event: it is consumed. Returns its {@code _sn}. */
    public long event(long offset) {
        inputs[next] = offset + 1;
        turn();
        return sn++;
    }

    /** The next queue's record is a heartbeat: it is consumed. */
    public void heartbeat(long offset, long sequence) {
        inputs[next] = offset + 1;
        if (sequence > beats[next]) {
            beats[next] = sequence;
            turn();
        }
    }

    public InBandPlace place() {
        return new InBandPlace(inputs.clone(), beats.clone(), next, sn);
    }

    private void turn() {
        long lowest = beats[0];
        for (long beat : beats) {
            lowest = Math.min(lowest, beat);
        }
        do {
            next = (next + 1) % beats.length;
        } while (beats[next] != lowest);
    }

    /** The number of the heartbeat that a record's value holds, or -1 if it is none. */
    public static long sequence(byte[] value) {
        if (value == null || value.length > OrderRecord.LIMIT) {
            return NONE;
        }
        try {
            JsonNode node = OrderRecord.READER.readTree(value);
            JsonNode sequence = node.path("sequence");
            boolean sound = KIND.equals(node.path("is").textValue())
                    && sequence.isIntegralNumber()
                    && sequence.canConvertToLong()
                    && node.size() == (node.path("by").isTextual() ? 3 : 2);
            return sound ? Math.max(NONE, sequence.longValue()) : NONE;
        } catch (IOException notJson) {
            return NONE;
        }
    }
}
