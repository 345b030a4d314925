package io.kquota.reporter;

import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.Measurable;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.utils.Time;

/** What the reporter does with Kafka's own classes on a hand-set clock. Prints what test_reporter_rules.py expects. */
public final class ReporterCheck {
    private static long nowMs = 1_700_000_000_000L;
    private static final Time CLOCK = (Time) Proxy.newProxyInstance(ReporterCheck.class.getClassLoader(),
            new Class<?>[] {Time.class}, (proxy, method, args) -> method.getName().equals("milliseconds") ? nowMs : 0L);
    private static final List<String> GROUPS = List.of("Produce", "Fetch", "Request");
    private static final MetricConfig QUOTA = new MetricConfig().timeWindow(1, TimeUnit.SECONDS).samples(11);

    public static void main(String[] args) throws Throwable {
        List<String> seeds = List.of(args).subList(1, args.length);
        if (args[0].equals("sums")) for (String seed : seeds) sums(Long.parseLong(seed));
        else if (args[0].equals("expiry")) for (String seed : seeds) expiry(Long.parseLong(seed));
        else if (args[0].equals("events")) events();
        else if (args[0].equals("other-class")) otherClass();
        else if (args[0].equals("other-field")) reporter().init(List.of());
        else full();
    }

    /** Random records, some taken back, rates that are read (which purges windows), pauses, and clocks that step. */
    private static void sums(long seed) throws Throwable {
        try (Metrics metrics = new Metrics(QUOTA, CLOCK)) {
            sums(new Random(seed), metrics);
        }
    }

    private static void sums(Random draw, Metrics metrics) throws Throwable {
        Sensor sensor = metrics.sensor("Produce-alice");
        MetricName name = metrics.metricName("byte-rate", "Produce", "", Map.of("user", "alice", "client-id", "etl"));
        sensor.add(name, new Rate());
        KafkaMetric metric = metrics.metric(name);
        SampleReader reader = SampleReader.open();
        SampleReader.Place place = new SampleReader.Place();
        long recorded = 0, read = 0, records = 0, count = 0, sinceLookMs = 0;
        for (int step = 0; step < 20_000; step++) {
            long passedMs = draw.nextInt(10) > 0 ? draw.nextInt(300) : draw.nextInt(9_000);
            if (draw.nextInt(500) == 0) passedMs = -draw.nextInt(60_000); // the clock is set back
            nowMs += passedMs;
            sinceLookMs += Math.max(passedMs, 0);
            if (sinceLookMs >= 10_000 || draw.nextInt(4) == 0) {
                nowMs -= sinceLookMs >= 10_000 ? passedMs : 0;
                if (reader.read(metric, place)) {
                    read += (long) reader.value;
                    count += reader.count;
                }
                sinceLookMs = 0;
            }
            if (draw.nextInt(3) == 0) metric.metricValue();
            for (int i = draw.nextInt(3); i > 0; i--) {
                long bytes = draw.nextInt(1 << 20) - (draw.nextInt(20) == 0 ? 1 << 19 : 0);
                sensor.record(bytes, nowMs);
                recorded += bytes;
                records++;
            }
        }
        if (reader.read(metric, place)) {
            read += (long) reader.value;
            count += reader.count;
        }
        System.out.println(read - recorded + " " + (count - records));
    }

    /**
     * Sensors that Kafka removes an hour after their last record, or with their quota, and makes again, as its quota
     * managers do. Prints what is missing in the events of each quota type, and how many clients are still remembered.
     */
    private static void expiry(long seed) throws Throwable {
        UsageReporter reporter = reporter();
        long[] missing = new long[GROUPS.size()];
        int expired = 0;
        try (Metrics metrics = new Metrics(QUOTA, List.of(reporter), CLOCK, false)) {
            reporter.close(); // its thread: from here on this one reads and takes
            Random draw = new Random(seed);
            for (int step = 0; step < 20_000; step++) {
                nowMs += draw.nextInt(400);
                if (draw.nextInt(100) == 0) { // looks are never an hour apart
                    take(reporter, missing);
                    nowMs += draw.nextInt(5_000_000);
                    int before = metrics.metrics().size();
                    expire(metrics);
                    expired += before - metrics.metrics().size();
                }
                int client = draw.nextInt(4), kind = draw.nextInt(GROUPS.size());
                if (draw.nextInt(30) == 0) metrics.removeSensor(GROUPS.get(kind) + client);
                long amount = 2 * draw.nextInt(1 << 20);
                sensor(metrics, client, kind).record(kind == Client.REQUEST_TIME ? amount * 1e-7 : amount, nowMs);
                missing[kind] += amount;
                if (draw.nextInt(10) == 0) take(reporter, missing);
            }
            nowMs += 3_600_001;
            expire(metrics);
            take(reporter, missing);
        }
        missing[Client.REQUEST_TIME] /= 10_000; // parts of a nanosecond are lost with each sensor
        System.out.println(Arrays.toString(missing) + " " + reporter.clients.size() + " " + (expired > 300));
    }

    private static Sensor sensor(Metrics metrics, int client, int kind) {
        Sensor sensor = metrics.sensor(GROUPS.get(kind) + client, QUOTA, 3_600);
        String name = kind == Client.REQUEST_TIME ? "request-time" : "byte-rate";
        Map<String, String> tags = Map.of("user", "alice", "client-id", "" + client);
        sensor.add(metrics.metricName(name, GROUPS.get(kind), "", tags), new Rate());
        return sensor;
    }

    /** What Kafka does each 30 s. */
    private static void expire(Metrics metrics) throws Throwable {
        Class<?> task = Class.forName("org.apache.kafka.common.metrics.Metrics$ExpireSensorTask");
        var made = task.getDeclaredConstructor(Metrics.class);
        made.setAccessible(true);
        var run = task.getDeclaredMethod("run");
        run.setAccessible(true);
        run.invoke(made.newInstance(metrics));
    }

    private static void take(UsageReporter reporter, long[] missing) throws Throwable {
        reporter.read(nowMs);
        for (Client.Event event; (event = reporter.nextEvent()) != null; )
            for (int kind = 0; kind < missing.length; kind++) missing[kind] -= event.amounts[kind];
    }

    /** Amounts as events: parts of a nanosecond are carried, large sums divided, what was taken back is awaited. */
    private static void events() {
        Client client = new Client(Map.entry("al\"ice", "\u0001\ud800é"), "1");
        client.sensors = client.requestSensors = 2;
        for (int i = 0; i < 3; i++) {
            client.add(Client.REQUEST_TIME, 0.00000005, 1, 100 + i);
            print(client);
        }
        client.add(Client.PRODUCED, Client.LARGEST_MEASURE + 5.0, 1, 200);
        print(client);
        print(client);
        client.add(Client.FETCHED, 10, 1, 300);
        print(client);
        client.add(Client.FETCHED, -10, 1, 400);
        print(client);
        client.add(Client.FETCHED, 25, 1, 500);
        client.add(Client.THROTTLED, 1_500, 2, 501);
        Client.Event refused = client.take();
        client.add(Client.FETCHED, 1, 1, 600);
        client.putBack(refused);
        print(client);
        print(client);
    }

    private static void print(Client client) {
        Client.Event event = client.take();
        StringBuilder text = new StringBuilder();
        if (event != null) client.append(event, text);
        System.out.println(event == null ? "nothing" : text);
    }

    /** A quota metric that is no rate of samples. */
    private static void otherClass() throws InterruptedException {
        UsageReporter reporter = reporter();
        MetricName name = new MetricName("byte-rate", "Fetch", "", Map.of("user", "alice", "client-id", "etl"));
        reporter.init(new ArrayList<>());
        for (int i = 0; i < 3; i++) {
            reporter.metricChange(new KafkaMetric(new Object(), name, (Measurable) (config, now) -> 1, QUOTA, CLOCK));
            Thread.sleep(600);
        }
        reporter.close();
    }

    private static void full() {
        UsageReporter reporter = reporter();
        for (int i = 0; i < UsageReporter.MOST_SENSORS + 3; i++) {
            MetricName name = new MetricName("byte-rate", "Fetch", "", Map.of("user", "alice", "client-id", "" + i));
            reporter.metricChange(new KafkaMetric(new Object(), name, new Rate(), QUOTA, CLOCK));
        }
    }

    private static UsageReporter reporter() {
        UsageReporter reporter = new UsageReporter();
        reporter.configure(Map.of("node.id", "1", "kquota.reporter.bootstrap.servers", "127.0.0.1:1"));
        return reporter;
    }
}
