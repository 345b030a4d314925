import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Iterator;
import java.util.LinkedList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;

/**
 * The published purgatory benchmark on the JVM: Kafka's own purgatory, and the 0.8 design re-built.
 *
 * <p>Arguments: design (kafka, 0.8.1, 0.8.2), requests, median and 75th percentile of the latency in ms, time-out in ms,
 * seconds a run may take, target rates per second ("Infinity": not paced). For each rate one line on stdout: target,
 * achieved, CPU microseconds a request, requests, expired. One thread enqueues, one completes what its latency is over
 * from a second queue, and the design has its own threads for expiry.
 */
public final class PurgatoryBench {
    private static final List<Key> KEYS = List.of(new Key("17"), new Key("42"), new Key("96"));
    private static final double P75_IN_SIGMAS = 0.674490;

    private record Key(String keyLabel) implements DelayedOperationKey { }

    /** A purgatory under test. `watch` returns what to run when the latency is over, or null: completed at once. */
    private interface Design extends AutoCloseable {
        Runnable watch(long timeoutMs, long completesAtMs);
    }

    private static final AtomicInteger completed = new AtomicInteger();
    private static final AtomicInteger expired = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        int requests = Integer.parseInt(arguments[1]);
        double median = Double.parseDouble(arguments[2]);
        double sigma = Math.log(Double.parseDouble(arguments[3]) / median) / P75_IN_SIGMAS;
        long timeoutMs = Long.parseLong(arguments[4]);
        double limitSeconds = Double.parseDouble(arguments[5]);
        run(arguments[0], draw(requests / 5, median, sigma), timeoutMs, 3, Double.POSITIVE_INFINITY);
        int[] latencies = draw(requests, median, sigma);
        for (String rate : Arrays.asList(arguments).subList(6, arguments.length)) {
            System.out.println(run(arguments[0], latencies, timeoutMs, limitSeconds, Double.parseDouble(rate)));
        }
        System.exit(0);
    }

    private static int[] draw(int requests, double median, double sigma) {
        Random random = new Random(1);
        int[] latencies = new int[requests];
        double carried = 0;
        for (int i = 0; i < requests; i++) {
            double exact = median * Math.exp(sigma * random.nextGaussian()) + carried;
            latencies[i] = (int) exact;
            carried = exact - latencies[i];
        }
        return latencies;
    }

    private static String run(String name, int[] latencies, long timeoutMs, double limitSeconds, double rate)
            throws Exception {
        completed.set(0);
        expired.set(0);
        System.gc();
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        Random random = new Random(2);
        int enqueued = 0;
        try (Design design = name.equals("kafka") ? new NewDesign() : new OldDesign(name.equals("0.8.1"), limitSeconds);
                CompletionQueue completions = new CompletionQueue()) {
            long cpuNs = system.getProcessCpuTime();
            long startNs = System.nanoTime();
            double arrivalMs = 0;
            for (; enqueued < latencies.length; enqueued++) {
                arrivalMs += rate == Double.POSITIVE_INFINITY ? 0 : -Math.log(1 - random.nextDouble()) * 1000 / rate;
                double elapsedMs = (System.nanoTime() - startNs) / 1e6;
                if (arrivalMs > elapsedMs + 1) {
                    Thread.sleep((long) (arrivalMs - elapsedMs));
                } else if (elapsedMs > limitSeconds * 1000) {
                    break;
                }
                long completesAtMs = System.currentTimeMillis() + latencies[enqueued];
                Runnable completion = design.watch(timeoutMs, completesAtMs);
                if (completion != null && latencies[enqueued] < timeoutMs) {
                    completions.add(completesAtMs, completion);
                }
            }
            double seconds = (System.nanoTime() - startNs) / 1e9;
            long giveUpNs = System.nanoTime() + 1_000_000_000L;
            while (completed.get() < enqueued && System.nanoTime() < giveUpNs) {
                Thread.sleep(1);
            }
            double cpuUs = (system.getProcessCpuTime() - cpuNs) / 1e3 / enqueued;
            return rate + " " + enqueued / seconds + " " + cpuUs + " " + enqueued + " " + expired.get();
        }
    }

    /** Kafka's `DelayedOperationPurgatory` with its defaults: tick 1 ms, 20 buckets, purge interval 1000. */
    private static final class NewDesign implements Design {
        private final DelayedOperationPurgatory<Operation> purgatory = new DelayedOperationPurgatory<>("bench", 0);

        @Override
        public Runnable watch(long timeoutMs, long completesAtMs) {
            Operation operation = new Operation(timeoutMs, completesAtMs);
            return purgatory.tryCompleteElseWatch(operation, KEYS) ? null : operation::forceComplete;
        }

        @Override public void close() throws Exception { purgatory.shutdown(); }

        private static final class Operation extends DelayedOperation {
            private final long completesAtMs;

            Operation(long timeoutMs, long completesAtMs) {
                super(timeoutMs);
                this.completesAtMs = completesAtMs;
            }

            @Override
            public boolean tryComplete() {
                return System.currentTimeMillis() >= completesAtMs && forceComplete();
            }

            @Override public void onComplete() { completed.incrementAndGet(); }
            @Override public void onExpiration() { expired.incrementAndGet(); }
        }
    }

    /** Watch lists and one delay queue of all requests; see bench/purgatory/old_design.py for the rules. */
    private static final class OldDesign implements Design {
        private static final int PURGE_INTERVAL = 10_000;
        private static final int PURGE_THRESHOLD = 1_000;

        private final boolean arrayLists;
        private final ConcurrentHashMap<Key, Collection<Request>> lists = new ConcurrentHashMap<>();
        private final DelayQueue<Request> queue = new DelayQueue<>();
        private final AtomicInteger watchedSincePurge = new AtomicInteger();
        private final Thread reaper = new Thread(this::reap);
        private final long stopNs;
        private volatile boolean running = true;

        OldDesign(boolean arrayLists, double limitSeconds) {
            this.arrayLists = arrayLists;
            stopNs = System.nanoTime() + (long) (limitSeconds * 1e9);
            reaper.start();
        }

        @Override
        public Runnable watch(long timeoutMs, long completesAtMs) {
            Request request = new Request(timeoutMs, completesAtMs);
            if (request.check()) {
                return null;
            }
            for (Key key : KEYS) {
                Collection<Request> list =
                        lists.computeIfAbsent(key, missing -> arrayLists ? new ArrayList<>() : new LinkedList<>());
                synchronized (list) {
                    list.add(request);
                }
            }
            if (request.check()) {
                return null;
            }
            watchedSincePurge.incrementAndGet();
            queue.add(request);
            return request::satisfy;
        }

        private void reap() {
            try {
                while (running) {
                    Request request = queue.poll(200, TimeUnit.MILLISECONDS);
                    while (request != null && !request.satisfy()) {
                        request = queue.poll(200, TimeUnit.MILLISECONDS);
                    }
                    if (request != null) {
                        expired.incrementAndGet();
                    }
                    purge();
                }
            } catch (InterruptedException closed) {
                Thread.currentThread().interrupt();
            }
        }

        private void purge() {
            int watched = lists.values().stream().mapToInt(Collection::size).sum();
            boolean listsToo = arrayLists ? watchedSincePurge.get() >= PURGE_INTERVAL : watched >= PURGE_THRESHOLD;
            if (listsToo) {
                watchedSincePurge.set(0);
                for (Collection<Request> list : lists.values()) {
                    synchronized (list) {
                        dropSatisfied(list);
                    }
                }
            }
            if (arrayLists ? listsToo : queue.size() >= PURGE_THRESHOLD) {
                dropSatisfied(queue);
            }
        }

        /** One by one as the original does: O(n) each in an array list and in the queue. Ends when the run's time is up. */
        private void dropSatisfied(Collection<Request> requests) {
            Iterator<Request> each = requests.iterator();
            while (running && System.nanoTime() < stopNs && each.hasNext()) {
                if (each.next().satisfied.get()) {
                    each.remove();
                }
            }
        }

        @Override
        public void close() throws Exception {
            running = false;
            reaper.interrupt();
            reaper.join();
        }

        private static final class Request extends Timed {
            private final long completesAtMs;
            private final AtomicBoolean satisfied = new AtomicBoolean();

            Request(long timeoutMs, long completesAtMs) {
                super(System.currentTimeMillis() + timeoutMs);
                this.completesAtMs = completesAtMs;
            }

            synchronized boolean check() { return System.currentTimeMillis() >= completesAtMs && satisfy(); }

            boolean satisfy() {
                boolean first = satisfied.compareAndSet(false, true);
                if (first) {
                    completed.incrementAndGet();
                }
                return first;
            }
        }
    }

    /** Runs completions when their time has come, on a thread of its own. */
    private static final class CompletionQueue implements AutoCloseable {
        private final DelayQueue<Completion> queue = new DelayQueue<>();
        private final Thread thread = new Thread(this::work);

        CompletionQueue() {
            thread.start();
        }

        void add(long atMs, Runnable completion) { queue.add(new Completion(atMs, completion)); }

        private void work() {
            try {
                while (true) {
                    queue.take().completion.run();
                }
            } catch (InterruptedException closed) {
                Thread.currentThread().interrupt();
            }
        }

        @Override
        public void close() throws Exception {
            thread.interrupt();
            thread.join();
        }

        private static final class Completion extends Timed {
            private final Runnable completion;

            Completion(long atMs, Runnable completion) {
                super(atMs);
                this.completion = completion;
            }
        }
    }

    /** Something with a time. */
    private abstract static class Timed implements Delayed {
        private final long atMs;

        Timed(long atMs) { this.atMs = atMs; }

        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(atMs - System.currentTimeMillis(), TimeUnit.MILLISECONDS);
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(atMs, ((Timed) other).atMs);
        }
    }
}
