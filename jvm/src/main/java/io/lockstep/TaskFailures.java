package io.lockstep;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerTaskEnd;

/**
 * Why each of the last failed tasks failed, as the driver was told.
 *
 * <p>In real time a reducer that loses its connection to a failed reader may report before the reader does, and Spark
 * then ends the query with the reducer's words, which name the reader's task and nothing else.
 */
public final class TaskFailures extends SparkListener {
    private static final int KEPT = 100;
    private static final Map<Long, String> REASONS = new LinkedHashMap<>();

    @Override
    public void onTaskEnd(SparkListenerTaskEnd end) {
        if (end.reason() instanceof TaskFailedReason reason) {
            told(end.taskInfo().taskId(), reason.toErrorString());
        }
    }

    static void told(long task, String reason) {
        synchronized (REASONS) {
            REASONS.put(task, reason);
            if (REASONS.size() > KEPT) {
                REASONS.remove(REASONS.keySet().iterator().next());
            }
            REASONS.notifyAll();
        }
    }

    /** Why the task failed, or an empty string if that is not told within the time. */
    public static String of(long task, long patienceMs) throws InterruptedException {
        long deadline = System.nanoTime() + patienceMs * 1_000_000;
        synchronized (REASONS) {
            long left = patienceMs;
            while (!REASONS.containsKey(task) && left > 0) {
                REASONS.wait(left);
                left = (deadline - System.nanoTime()) / 1_000_000;
            }
            return REASONS.getOrDefault(task, "");
        }
    }
}
