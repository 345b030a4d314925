import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;

/**
 * The published purgatory benchmark on Kafka's `DelayedOperationPurgatory` with its defaults: tick 1 ms, 20 buckets.
 *
 * <p>Arguments: requests, median and 75th percentile of the latency in ms, time-out in ms, seconds a run may take,
 * target rates per second ("Infinity": not paced). For each rate one line on stdout: target, achieved, CPU microseconds
 * a request, requests, expired. One thread enqueues, one completes what its latency is over from a second queue, and
 * the purgatory has its own threads for expiry.
 */
public final class PurgatoryBench {
    private static final List<Key> KEYS = List.of(new Key("17"), new Key("42"), new Key("96"));
    private static final double P75_IN_SIGMAS = 0.674490;

    private static final AtomicInteger completed = new AtomicInteger();
    private static final AtomicInteger expired = new AtomicInteger();

    private record Key(String keyLabel) implements DelayedOperationKey { }

    public static void main(String[] arguments) throws Exception {
        int requests = Integer.parseInt(arguments[0]);
        double median = Double.parseDouble(arguments[1]);
        double sigma = Math.log(Double.parseDouble(arguments[2]) / median) / P75_IN_SIGMAS;
        long timeoutMs = Long.parseLong(arguments[3]);
        double limitSeconds = Double.parseDouble(arguments[4]);
        run(draw(requests / 5, median, sigma), timeoutMs, 3, Double.POSITIVE_INFINITY);
        int[] latencies = draw(requests, median, sigma);
        for (String rate : Arrays.asList(arguments).subList(5, arguments.length)) {
            System.out.println(run(latencies, timeoutMs, limitSeconds, Double.parseDouble(rate)));
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

    private static String run(int[] latencies, long timeoutMs, double limitSeconds, double rate) throws Exception {
        completed.set(0);
        expired.set(0);
        System.gc();
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        Random random = new Random(2);
        DelayedOperationPurgatory<Operation> purgatory = new DelayedOperationPurgatory<>("bench", 0);
        DelayQueue<Completion> completions = new DelayQueue<>();
        Thread completer = new Thread(() -> complete(completions));
        completer.start();
        int enqueued = 0;
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
            Operation operation = new Operation(timeoutMs, completesAtMs);
            if (!purgatory.tryCompleteElseWatch(operation, KEYS) && latencies[enqueued] < timeoutMs) {
                completions.add(new Completion(operation));
            }
        }
        double seconds = (System.nanoTime() - startNs) / 1e9;
        long giveUpNs = System.nanoTime() + 1_000_000_000L;
        while (completed.get() < enqueued && System.nanoTime() < giveUpNs) {
            Thread.sleep(1);
        }
        double cpuUs = (system.getProcessCpuTime() - cpuNs) / 1e3 / enqueued;
        completer.interrupt();
        completer.join();
        purgatory.shutdown();
        return rate + " " + enqueued / seconds + " " + cpuUs + " " + enqueued + " " + expired.get();
    }

    private static void complete(DelayQueue<Completion> completions) {
        try {
            while (true) {
                completions.take().operation.forceComplete();
            }
        } catch (InterruptedException over) {
            Thread.currentThread().interrupt();
        }
    }

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

    /** An operation that completes when its latency is over. */
    private record Completion(Operation operation) implements Delayed {
        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(operation.completesAtMs - System.currentTimeMillis(), TimeUnit.MILLISECONDS);
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(operation.completesAtMs, ((Completion) other).operation.completesAtMs);
        }
    }
}
