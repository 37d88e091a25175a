package io.lockstep.order;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;

/**
 * Which order records count: decided by the prefix of the order topic alone (design rule 1). The Python twin is
 * {@code lockstep.order.acceptance}; shared vectors hold both to the same answers.
 */
final class Acceptance {
    /** One input, by its queue. */
    record Input(int queue, long offset) implements Comparable<Input> {
        @Override
        public int compareTo(Input other) {
            return queue != other.queue ? Integer.compare(queue, other.queue) : Long.compare(offset, other.offset);
        }
    }

    long[] ends;
    long epoch;
    long version;
    Set<Input> skipped = new HashSet<>();

    Acceptance(long[] ends) {
        this.ends = ends;
    }

    Acceptance copy() {
        Acceptance copy = new Acceptance(ends); // ends are replaced, never changed
        copy.epoch = epoch;
        copy.version = version;
        copy.skipped = skipped.isEmpty() ? Set.of() : new HashSet<>(skipped);
        return copy;
    }

    /** The record as it counts (a cut as the maximum with the ones before), or null if it is void. */
    OrderRecord accept(OrderRecord record) {
        if (record instanceof OrderRecord.Cut cut && cut.ends().length == ends.length) {
            long[] highest = ends.clone();
            for (int queue = 0; queue < highest.length; queue++) {
                highest[queue] = Math.max(highest[queue], cut.ends()[queue]);
            }
            if (Arrays.equals(highest, ends)) {
                return null;
            }
            ends = highest;
            return new OrderRecord.Cut(highest);
        }
        if (record instanceof OrderRecord.Claim claim && claim.epoch() > epoch) {
            epoch = claim.epoch();
            return record;
        }
        if (record instanceof OrderRecord.Order order
                && epoch > 0
                && order.epoch() == epoch
                && order.version() == version + 1
                && wellFormed(order)) {
            version = order.version();
            return record;
        }
        if (record instanceof OrderRecord.Skip skip && skip.queue() < ends.length) {
            return skipped.add(new Input((int) skip.queue(), skip.offset())) ? record : null;
        }
        return null;
    }

    private boolean wellFormed(OrderRecord.Order order) {
        for (int run = 0; run < order.queues().length; run++) {
            if (order.queues()[run] >= ends.length || order.counts()[run] <= 0) {
                return false;
            }
        }
        return true;
    }
}
