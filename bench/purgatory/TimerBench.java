import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Arrays;
import java.util.Collections;
import java.util.Random;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.server.util.timer.SystemTimer;
import org.apache.kafka.server.util.timer.TimerTask;

/**
 * Insert, cancel and expire on Kafka's `SystemTimer` and on a `DelayQueue`, as bench/purgatory/timers.py does it.
 *
 * <p>Arguments: rounds, number of pending entries. One line each on stdout: name, million inserts, cancels and expiries
 * per second of this thread's CPU time (medians after the first round); NaN for what was not measured.
 */
public final class TimerBench {
    private static final int SPAN_MS = 1000;
    private static final int HOUR_MS = 3_600_000;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private interface Round {
        double[] run(int[] delays) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        measure("SystemTimer", TimerBench::systemTimer, arguments);
        measure("DelayQueue", TimerBench::delayQueue, arguments);
        System.exit(0);
    }

    private static void measure(String name, Round round, String[] arguments) throws Exception {
        int rounds = Integer.parseInt(arguments[0]);
        double[][] speeds = new double[3][rounds];
        for (int number = -1; number < rounds; number++) {
            int[] delays = new Random(number).ints(Integer.parseInt(arguments[1]), 1, SPAN_MS + 1).toArray();
            double[] figures = round.run(delays);
            for (int kind = 0; kind < 3 && number >= 0; kind++) {
                speeds[kind][number] = figures[kind];
            }
        }
        StringBuilder line = new StringBuilder(name);
        for (double[] figures : speeds) {
            Arrays.sort(figures);
            line.append(' ').append(figures[rounds / 2]);
        }
        System.out.println(line);
    }

    private static double[] systemTimer(int[] delays) throws Exception {
        SystemTimer timer = new SystemTimer("bench");
        for (int delay : delays) {
            timer.add(new Task(delay));
        }
        Task[] later = new Task[delays.length];
        long startNs = THREADS.getCurrentThreadCpuTime();
        for (int i = 0; i < later.length; i++) {
            later[i] = new Task(delays[i] + HOUR_MS); // all there to be cancelled
            timer.add(later[i]);
        }
        double insert = millionPerSecond(delays.length, startNs);
        Collections.shuffle(Arrays.asList(later), new Random(1));
        startNs = THREADS.getCurrentThreadCpuTime();
        for (Task task : later) {
            task.cancel();
        }
        double cancel = millionPerSecond(delays.length, startNs);
        Thread.sleep(SPAN_MS + 100);
        startNs = THREADS.getCurrentThreadCpuTime();
        while (timer.size() > 0) {
            timer.advanceClock(0);
        }
        double expire = millionPerSecond(delays.length, startNs);
        timer.close();
        return new double[] {insert, cancel, expire};
    }

    private static double[] delayQueue(int[] delays) throws Exception {
        DelayQueue<Entry> queue = new DelayQueue<>();
        long nowMs = System.currentTimeMillis();
        for (int delay : delays) {
            queue.add(new Entry(nowMs + delay));
        }
        long startNs = THREADS.getCurrentThreadCpuTime();
        for (int delay : delays) {
            queue.add(new Entry(nowMs + delay + HOUR_MS));
        }
        double insert = millionPerSecond(delays.length, startNs);
        Thread.sleep(SPAN_MS + 100);
        int expired = 0;
        startNs = THREADS.getCurrentThreadCpuTime();
        while (queue.poll() != null) {
            expired++;
        }
        double expire = millionPerSecond(delays.length, startNs);
        if (expired != delays.length) {
            throw new IllegalStateException(expired + " of " + delays.length + " expired");
        }
        return new double[] {insert, Double.NaN, expire};
    }

    private static double millionPerSecond(int operations, long startNs) {
        return operations * 1e3 / (THREADS.getCurrentThreadCpuTime() - startNs);
    }

    private static final class Task extends TimerTask {
        Task(long delayMs) {
            super(delayMs);
        }

        @Override public void run() { }
    }

    private record Entry(long atMs) implements Delayed {
        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(atMs - System.currentTimeMillis(), TimeUnit.MILLISECONDS);
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(atMs, ((Entry) other).atMs);
        }
    }
}
