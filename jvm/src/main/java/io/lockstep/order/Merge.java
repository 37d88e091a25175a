package io.lockstep.order;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Set;

/**
 * Turns accepted order records into one sequence of inputs, the same on every site. It knows no Kafka: whoever uses
 * it fetches the record that it names. The Python twin is {@code lockstep.order.merge.Merge}; shared vectors hold
 * both to the same sequence, and Algorithm 1 to the letter judges the Python one.
 */
public final class Merge {
    /** An order record that was read and is not begun, and what was accepted before it. */
    private record Pending(long orderOffset, Acceptance before, OrderRecord record) {}

    private long[] inputs;
    private final Acceptance accepted;
    private final ArrayDeque<Pending> pending = new ArrayDeque<>();
    private long sn;
    private int next;
    private long read;
    private MergePlace current;
    private long ahead;

    private int peeked = -1;
    // What is left of the record that is being consumed: of a cut by queue, of an order by run.
    private boolean interleaving;
    private long[] counts = {};
    private boolean[] active = {};
    private int left;
    private int queue;
    private OrderRecord.Order order;
    private int run;
    private long runLeft;

    /**
     * A merge that goes on at a place: feed it the order topic from {@code place.orderOffset()} on.
     *
     * @param growing of the queues that the run began with, those whose topics may grow
     */
    public Merge(MergePlace place, Set<OrderRecord.Queue> growing) {
        inputs = place.inputs().clone();
        accepted = new Acceptance(place.ends(), place.added(), growing);
        accepted.epoch = place.epoch();
        accepted.version = place.version();
        for (int index = 0; index < place.skips().length; index += 2) {
            accepted.skipped.add(new Acceptance.Input((int) place.skips()[index], place.skips()[index + 1]));
        }
        sn = place.sn();
        next = place.next();
        read = place.orderOffset();
        ahead = place.done();
    }

    /** Take the record at {@code orderOffset} of the order topic, null if it is none; whether it counts. */
    public boolean follow(long orderOffset, OrderRecord record) {
        Acceptance before = accepted.copy();
        OrderRecord counted = accepted.accept(record);
        read = orderOffset + 1;
        if (counted instanceof OrderRecord.Cut || counted instanceof OrderRecord.Order) {
            pending.add(new Pending(orderOffset, before, counted));
        }
        return counted != null;
    }

    /** Order records that were read and are not begun: bounded by whoever reads them. */
    public int waiting() {
        return pending.size();
    }

    /** The queue of the next input, or -1 while the order does not reach further. */
    public int peek() {
        while (ahead > 0) {
            if (upcomingQueue() < 0) {
                return -1;
            }
            consume();
            ahead--;
        }
        return upcomingQueue();
    }

    /** Whether all that was done already when this merge began is passed; it takes the order record to know. */
    public boolean settled() {
        return ahead == 0;
    }

    /** How many queues take part: more after a {@link #peek} that has begun a cut which adds some. */
    public int queues() {
        return inputs.length;
    }

    /** The queue of that number, which is none of those that the run began with. */
    public OrderRecord.Queue added(int queue) {
        return accepted.added.get(queue - (accepted.ends.length - accepted.added.size()));
    }

    /** The offset of the next input of a queue. */
    public long input(int queue) {
        return inputs[queue];
    }

    /** The offset of the next input. Valid after a {@link #peek} that found one. */
    public long offset() {
        return inputs[peeked];
    }

    /** The number of the next input. */
    public long upcoming() {
        return sn + ahead;
    }

    /** Consume the input that {@link #peek} found; false if it is to be skipped. A skip uses up its number. */
    public boolean take() {
        return consume();
    }

    /** Where the next input is taken. */
    public MergePlace place() {
        if (current != null) {
            return anchored(current, sn - current.sn() + ahead);
        }
        if (!pending.isEmpty()) {
            return anchor(pending.peek().orderOffset(), pending.peek().before());
        }
        return anchor(read, accepted);
    }

    private boolean consume() {
        int from = peeked;
        peeked = -1;
        long offset = inputs[from]++;
        sn++;
        boolean skipped = !accepted.skipped.isEmpty() && accepted.skipped.remove(new Acceptance.Input(from, offset));
        return !skipped;
    }

    private int upcomingQueue() {
        while (peeked < 0) {
            peeked = interleaving ? nextOfCut() : nextOfOrder();
            if (peeked < 0) {
                current = null;
                if (pending.isEmpty()) {
                    return -1;
                }
                begin(pending.poll());
            }
        }
        return peeked;
    }

    private void begin(Pending begun) {
        current = anchor(begun.orderOffset(), begun.before());
        if (begun.record() instanceof OrderRecord.Cut cut) {
            interleaving = true;
            inputs = Arrays.copyOf(inputs, cut.ends().length); // a partition that was added begins at offset 0
            counts = new long[inputs.length];
            active = new boolean[inputs.length];
            for (int one = 0; one < inputs.length; one++) {
                counts[one] = cut.ends()[one] - inputs[one];
                active[one] = true;
            }
            left = inputs.length;
            queue = next;
        } else {
            interleaving = false;
            order = (OrderRecord.Order) begun.record();
            run = -1;
            runLeft = 0;
        }
    }

    /** One cycle of Algorithm 1: round robin over the active queues, each leaving at its heartbeat. */
    private int nextOfCut() {
        while (left > 0) {
            int from = queue;
            boolean gives = counts[from] > 0;
            if (gives) {
                counts[from]--;
            } else {
                active[from] = false;
                left--;
                if (left == 0) {
                    Arrays.fill(active, true);
                }
            }
            do {
                queue = queue + 1 == counts.length ? 0 : queue + 1;
            } while (!active[queue]);
            if (left == 0) {
                next = queue;
            }
            if (gives) {
                return from;
            }
        }
        return -1;
    }

    private int nextOfOrder() {
        while (runLeft == 0) {
            if (order == null || ++run >= order.queues().length) {
                order = null;
                return -1;
            }
            runLeft = order.counts()[run];
        }
        runLeft--;
        return (int) order.queues()[run];
    }

    private static MergePlace anchored(MergePlace at, long done) {
        return new MergePlace(
                at.orderOffset(),
                done,
                at.inputs(),
                at.sn(),
                at.next(),
                at.ends(),
                at.epoch(),
                at.version(),
                at.skips(),
                at.added());
    }

    private MergePlace anchor(long orderOffset, Acceptance before) {
        long[] skips = before.skipped.stream()
                .filter(skip -> skip.offset() >= inputs[skip.queue()])
                .sorted()
                .flatMapToLong(skip -> java.util.stream.LongStream.of(skip.queue(), skip.offset()))
                .toArray();
        return new MergePlace(
                orderOffset,
                ahead,
                inputs.clone(),
                sn,
                next,
                before.ends,
                before.epoch,
                before.version,
                skips,
                before.added);
    }
}
