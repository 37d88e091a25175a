package io.lockstep.order;

import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
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

    private static final int MOST_QUEUES = 1_000;

    private final Set<OrderRecord.Queue> growing;
    long[] ends;
    List<OrderRecord.Queue> added;
    long epoch;
    long version;
    Set<Input> skipped = new HashSet<>();

    /**
     * @param added the queues behind those that the run began with; {@code ends} has them too
     * @param growing of those that it began with, the ones whose topics may grow
     */
    Acceptance(long[] ends, List<OrderRecord.Queue> added, Set<OrderRecord.Queue> growing) {
        this.ends = ends;
        this.added = added;
        this.growing = growing;
    }

    Acceptance copy() {
        Acceptance copy = new Acceptance(ends, added, growing); // they are replaced, never changed
        copy.epoch = epoch;
        copy.version = version;
        copy.skipped = skipped.isEmpty() ? Set.of() : new HashSet<>(skipped);
        return copy;
    }

    /** The record as it counts (a cut as the maximum with the ones before), or null if it is void. */
    OrderRecord accept(OrderRecord record) {
        if (record instanceof OrderRecord.Cut cut && fits(cut)) {
            long[] highest = Arrays.copyOf(ends, Math.max(ends.length, cut.ends().length));
            for (int queue = 0; queue < cut.ends().length; queue++) {
                highest[queue] = Math.max(highest[queue], cut.ends()[queue]);
            }
            if (Arrays.equals(highest, ends)) {
                return null;
            }
            ends = highest;
            added = cut.added().size() > added.size() ? cut.added() : added;
            return new OrderRecord.Cut(highest, added);
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

    /** Whether the list of added queues of a cut begins the one that is known, or goes on behind it with new ones. */
    private boolean fits(OrderRecord.Cut cut) {
        List<OrderRecord.Queue> list = cut.added();
        int begun = ends.length - added.size();
        if (cut.ends().length != begun + list.size()) {
            return false;
        }
        int shared = Math.min(list.size(), added.size());
        if (!list.subList(0, shared).equals(added.subList(0, shared))) {
            return false;
        }
        if (list.size() <= added.size()) {
            return true;
        }
        return cut.ends().length <= MOST_QUEUES
                && new HashSet<>(list).size() == list.size()
                && list.subList(shared, list.size()).stream().allMatch(this::mayBeAdded);
    }

    private boolean mayBeAdded(OrderRecord.Queue queue) {
        return !growing.contains(queue)
                && growing.stream().anyMatch(one -> one.topic().equals(queue.topic()));
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
