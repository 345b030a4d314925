import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.server.util.timer.SystemTimer;
import org.apache.kafka.server.util.timer.TimerTask;

/**
 * Insert, cancel and expire on Kafka's `SystemTimer` and on a `DelayQueue`, as bench/purgatory/timers.py does it.
 *
 * <p>Arguments: rounds, then numbers of pending entries. One line each on stdout: name, pending, million inserts, cancels
 * and expiries per second of this thread's CPU time (medians), bytes of heap an entry; NaN for what was not measured.
 */
public final class TimerBench {
    private static final int SPAN_MS = 1000;
    private static final int FEWEST_OPERATIONS = 50_000;
    private static final int FEWEST_FOR_MEMORY = 100_000;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    /** One or more structures of a kind, filled anew in every round. */
    private interface Timers {
        void insert(int number, int delayMs);

        /** The entries that came last, in random order; empty if there is no cancel. */
        List<TimerTask> last(int entries, Random random);

        int expireDue() throws Exception;

        void close() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        int rounds = Integer.parseInt(arguments[0]);
        for (String name : List.of("SystemTimer", "DelayQueue")) {
            for (String size : Arrays.asList(arguments).subList(1, arguments.length)) {
                int pending = Integer.parseInt(size);
                if (pending <= 1_000_000) {
                    measure(name, pending, rounds);
                } else if (name.equals("SystemTimer")) {
                    measure(name, pending, Math.min(rounds, 3));
                }
            }
        }
        System.exit(0);
    }

    private static void measure(String name, int pending, int rounds) throws Exception {
        List<double[]> speeds = new ArrayList<>();
        for (int round = 0; round <= rounds; round++) {
            speeds.add(round(name, pending, round));
        }
        List<double[]> timed = speeds.subList(1, speeds.size());
        StringBuilder line = new StringBuilder(name + " " + pending);
        for (int figure = 0; figure < 4; figure++) {
            int column = figure;
            double[] sorted = timed.stream().mapToDouble(speed -> speed[column]).sorted().toArray();
            line.append(' ').append(sorted[sorted.length / 2]);
        }
        System.out.println(line);
    }

    private static double[] round(String name, int pending, int seed) throws Exception {
        int structures = Math.max(1, FEWEST_OPERATIONS / pending);
        int operations = structures * pending;
        Random random = new Random(seed);
        int[] delays = random.ints(operations, 1, SPAN_MS + 1).toArray();
        Timers timers = name.equals("SystemTimer") ? new KafkaTimers(structures, operations) : new Queues(structures);
        long beforeBytes = heapBytes();
        for (int i = 0; i < operations; i++) {
            timers.insert(i % structures, delays[i]);
        }
        double entryBytes = pending < FEWEST_FOR_MEMORY ? Double.NaN : (double) (heapBytes() - beforeBytes) / operations;
        long startNs = THREADS.getCurrentThreadCpuTime();
        for (int i = 0; i < operations; i++) {
            timers.insert(i % structures, delays[i] + 3_600_000); // in an hour: all there to be cancelled
        }
        double insert = millionPerSecond(operations, startNs);
        List<TimerTask> shuffled = timers.last(operations, random);
        startNs = THREADS.getCurrentThreadCpuTime();
        shuffled.forEach(TimerTask::cancel);
        double cancel = shuffled.isEmpty() ? Double.NaN : millionPerSecond(operations, startNs);
        Thread.sleep(SPAN_MS + 100);
        startNs = THREADS.getCurrentThreadCpuTime();
        int expired = timers.expireDue();
        double expire = millionPerSecond(operations, startNs);
        if (expired != operations) {
            throw new IllegalStateException(expired + " of " + operations + " expired");
        }
        timers.close();
        return new double[] {insert, cancel, expire, entryBytes};
    }

    private static double millionPerSecond(int operations, long startNs) {
        return operations * 1e3 / (THREADS.getCurrentThreadCpuTime() - startNs);
    }

    private static long heapBytes() {
        System.gc();
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    private static final class KafkaTimers implements Timers {
        private final List<SystemTimer> timers = new ArrayList<>();
        private final TimerTask[] latest;
        private int inserted;

        KafkaTimers(int structures, int entries) {
            for (int i = 0; i < structures; i++) {
                timers.add(new SystemTimer("bench"));
            }
            latest = new TimerTask[entries];
        }

        @Override
        public void insert(int number, int delayMs) {
            Task task = new Task(delayMs);
            latest[inserted++ % latest.length] = task;
            timers.get(number).add(task);
        }

        @Override
        public List<TimerTask> last(int entries, Random random) {
            List<TimerTask> shuffled = Arrays.asList(latest);
            Collections.shuffle(shuffled, random);
            return shuffled;
        }

        @Override
        public int expireDue() throws Exception {
            int expired = 0;
            for (SystemTimer timer : timers) {
                expired += timer.size();
                while (timer.size() > 0) {
                    timer.advanceClock(0);
                }
            }
            return expired;
        }

        @Override
        public void close() {
            timers.forEach(SystemTimer::close);
        }

        private static final class Task extends TimerTask {
            Task(long delayMs) {
                super(delayMs);
            }

            @Override
            public void run() { }
        }
    }

    private static final class Queues implements Timers {
        private final List<DelayQueue<Entry>> queues = new ArrayList<>();

        Queues(int structures) {
            for (int i = 0; i < structures; i++) {
                queues.add(new DelayQueue<>());
            }
        }

        @Override
        public void insert(int number, int delayMs) {
            queues.get(number).add(new Entry(System.currentTimeMillis() + delayMs));
        }

        @Override
        public List<TimerTask> last(int entries, Random random) {
            return List.of();
        }

        @Override
        public int expireDue() {
            int expired = 0;
            for (DelayQueue<Entry> queue : queues) {
                while (queue.poll() != null) {
                    expired++;
                }
            }
            return expired;
        }

        @Override
        public void close() { }

        private static final class Entry implements Delayed {
            private final long atMs;

            Entry(long atMs) {
                this.atMs = atMs;
            }

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
}
