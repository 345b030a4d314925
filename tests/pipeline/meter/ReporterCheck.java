package io.kquota.reporter;

import java.lang.management.ManagementFactory;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import javax.management.ObjectName;
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

    /** Each argument is a part, `name:seed:seed`; a line `== name` comes before what it prints. */
    public static void main(String[] parts) throws Throwable {
        for (String part : parts) {
            nowMs = 1_700_000_000_000L;
            System.out.println("== " + part);
            check(part.split(":"));
        }
    }

    private static void check(String[] args) throws Throwable {
        List<String> seeds = List.of(args).subList(1, args.length);
        if (args[0].equals("sums")) for (String seed : seeds) sums(Long.parseLong(seed));
        else if (args[0].equals("expiry")) for (String seed : seeds) expiry(Long.parseLong(seed));
        else if (args[0].equals("events")) events();
        else if (args[0].equals("left-out")) leftOut();
        else if (args[0].equals("exempt")) exempt();
        else if (args[0].equals("crowd")) crowd();
        else if (args[0].equals("long-names")) longNames();
        else if (args[0].equals("odd-sensors")) oddSensors();
        else if (args[0].equals("round")) failedRound();
        else if (args[0].equals("other-field")) reporter().init(List.of());
        else takeTurns();
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
            reporter.stop(); // its thread: from here on this one reads and takes
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
        for (Client.Event event; (event = reporter.clients.nextEvent()) != null; )
            for (int kind = 0; kind < missing.length; kind++) missing[kind] -= event.amounts[kind];
    }

    /** Amounts as events: parts of a nanosecond are carried, large sums divided, what was taken back is awaited. */
    private static void events() {
        Client client = new Client("al\"ice", "\u0001\ud800é", "1", false);
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
        print(client.take());
    }

    private static void print(Client.Event event) {
        StringBuilder text = new StringBuilder();
        if (event != null) event.client.append(event, text);
        System.out.println(event == null ? "nothing" : text);
    }

    /** Whose usage is reported under several settings, one line for each. */
    private static void leftOut() throws Throwable {
        leftOut(Map.of(), "ANONYMOUS/kquota-reporter", "ANONYMOUS/OWN", "/OWN", "alice/kquota-reporter", "b%24b/");
        leftOut(Map.of("exclude.users", "a, b,,a"), "a/x", "b/x", "c/x", "/x");
        Map<String, String> signedIn = Map.of("security.protocol", "SASL_SSL", "sasl.jaas.config", "Login username=\"svc\";");
        leftOut(signedIn, "svc/any", "svc/OWN", "ANONYMOUS/kquota-reporter", "ANONYMOUS/etl", "alice/etl");
        leftOut(Map.of("sasl.jaas.config", "Login username=svc;"), "svc/any", "ANONYMOUS/OWN");
        leftOut(Map.of("user", "ANONYMOUS"), "ANONYMOUS/any", "ANONYMOUS/OWN", "alice/etl");
    }

    private static void leftOut(Map<String, String> settings, String... clients) throws Throwable {
        UsageReporter reporter = reporter(settings);
        try (Metrics metrics = metricsOf(reporter)) {
            for (String client : clients) {
                String[] names = client.replace("OWN", reporter.ownClientId).split("/", -1);
                produce(metrics, names[0], names[1], 1);
            }
            System.out.println(new TreeSet<>(sums(reporter).keySet()));
        }
    }

    /** Exempt time, of a broker where clients use the names that its events have, and after its sensor was made again. */
    private static void exempt() throws Throwable {
        UsageReporter reporter = reporter(Map.of("user", "svc", "exclude.users", "svc"));
        try (Metrics metrics = metricsOf(reporter)) {
            for (int i = 0; i < 2; i++) {
                Sensor sensor = metrics.sensor("exempt-Request");
                sensor.add(metrics.metricName("exempt-request-time", "Request", ""), new Rate());
                for (int record = 0; record < 4; record++) sensor.record(0.5 * 1e-4, nowMs); // two requests
                produce(metrics, "svc", "", 5);
                reporter.read(nowMs);
                Client.Event event = reporter.clients.nextEvent();
                reporter.clients.putBack(event);
                print(reporter.clients.nextEvent());
                print(reporter.clients.nextEvent());
                metrics.removeSensor("exempt-Request");
            }
        }
    }

    /** A client with ever new client-ids: what is reported of it, of others, and of one of its own that goes on. */
    private static void crowd() throws Throwable {
        UsageReporter reporter = reporter();
        try (Metrics metrics = metricsOf(reporter)) {
            int names = Clients.MOST_OF_USER + 50;
            for (int i = 0; i < names; i++) produce(metrics, "mallory", "id-" + i, 2);
            produce(metrics, "bob", "etl", 5);
            sums(reporter, "bob/etl");
            produce(metrics, "mallory", "active", 7);
            sums(reporter, "bob/etl");
            printCounts();
            produce(metrics, "mallory", "id-0", 100); // which cannot be sent now
            for (int i = 0; i <= Clients.QUIET_ROUNDS; i++) reporter.read(nowMs);
            produce(metrics, "mallory", "active", 11);
            sums(reporter, "mallory/active");
            for (int i = 0; i < names; i++) metrics.removeSensor("Produce-mallory:id-" + i);
            for (String client : List.of("mallory:active", "bob:etl")) metrics.removeSensor("Produce-" + client);
            sums(reporter);
            printCounts();
        }
    }

    /** What JMX shows. */
    private static void printCounts() throws Exception {
        ObjectName bean = new ObjectName(UsageReporter.BEAN);
        for (String name : List.of("Sensors", "Clients", "SummedSensors", "UnreadableSensors", "LostEvents"))
            System.out.print(name + " " + ManagementFactory.getPlatformMBeanServer().getAttribute(bean, name) + " ");
        System.out.println();
    }

    /** Names that a reader of events refuses, or that fill messages. */
    private static void longNames() throws Throwable {
        UsageReporter reporter = reporter();
        try (Metrics metrics = metricsOf(reporter)) {
            produce(metrics, "alice", "\ufffd".repeat(32_767), 1); // bytes on the wire that are no characters
            produce(metrics, "alice", "x" + "\ufffd".repeat(32_766), 2);
            produce(metrics, "alice", "\ud83d\ude00".repeat(9_000), 3);
            produce(metrics, "u".repeat(40_000), "", 4);
            produce(metrics, "alice", "\u0001".repeat(32_767), 5);
            reporter.read(nowMs);
            for (Client.Event event; (event = reporter.clients.nextEvent()) != null; ) print(event);
            for (int i = 0; i < 300; i++) produce(metrics, "mallory", i + "y".repeat(30_000), 1);
            Map<String, Long> sums = sums(reporter);
            System.out.println(sums.size() + " " + sums.values().stream().mapToLong(one -> one).sum());
        }
    }

    /** Sensors that are not as Kafka makes them do not keep others from being read. */
    private static void oddSensors() throws Throwable {
        UsageReporter reporter = reporter();
        try (Metrics metrics = metricsOf(reporter)) {
            Map<String, String> nothing = new HashMap<>();
            nothing.put("user", null);
            nothing.put("client-id", null);
            List<Map<String, String>> odd = List.of(nothing, Map.of("user", "%zz"), Map.of("user", "alice"));
            for (Map<String, String> tags : odd) record(reporter, tags, 3);
            for (int i = 0; i < 2; i++) {
                Measurable other = (config, now) -> 1;
                MetricName name = new MetricName("byte-rate", "Fetch", "", Map.of("user", "alice", "client-id", "" + i));
                reporter.metricChange(new KafkaMetric(new Object(), name, other, QUOTA, CLOCK));
            }
            produce(metrics, "bob", "etl", 5);
            System.out.println(new TreeMap<>(sums(reporter)));
            printCounts();
        }
    }

    /** A round that fails is not the last one. */
    private static void failedRound() throws Throwable {
        UsageReporter reporter = reporter();
        try (Metrics metrics = metricsOf(reporter)) {
            Clients clients = reporter.clients;
            reporter.clients = null;
            for (int i = 0; i < 3; i++) reporter.round();
            reporter.clients = clients;
            produce(metrics, "bob", "etl", 5);
            sums(reporter, "bob/etl");
        }
    }

    /** More sensors than a round looks at. Prints the clients that are found in each round. */
    private static void takeTurns() throws Throwable {
        UsageReporter reporter = reporter();
        try (Metrics metrics = metricsOf(reporter)) {
            reporter.mostLooks = 10;
            for (int i = 0; i < 23; i++) record(reporter, Map.of("user", "alice", "client-id", "" + i), 1);
            for (int i = 0; i < 4; i++) System.out.println(sums(reporter).size());
        }
    }

    /** A sensor of this reporter with bytes in it. */
    private static void record(UsageReporter reporter, Map<String, String> tags, double bytes) {
        Rate rate = new Rate();
        MetricName name = new MetricName("byte-rate", "Fetch", "", tags);
        reporter.metricChange(new KafkaMetric(new Object(), name, rate, QUOTA, CLOCK));
        rate.record(QUOTA, bytes, nowMs);
    }

    private static void produce(Metrics metrics, String user, String clientId, double bytes) {
        Sensor sensor = metrics.sensor("Produce-" + user + ":" + clientId, QUOTA);
        Map<String, String> tags = Map.of("user", user, "client-id", clientId);
        sensor.add(metrics.metricName("byte-rate", "Produce", "", tags), new Rate());
        sensor.record(bytes, nowMs);
    }

    /** Look, and take what is to be sent: bytes of each client. */
    private static Map<String, Long> sums(UsageReporter reporter) throws Throwable {
        Map<String, Long> sums = new HashMap<>();
        reporter.read(nowMs);
        for (Client.Event event; (event = reporter.clients.nextEvent()) != null; )
            sums.merge(event.client.user + "/" + event.client.clientId, event.amounts[0] + event.amounts[1], Long::sum);
        return sums;
    }

    /** The same, and print how many clients of mallory there are, and the bytes of its shared sum and of another client. */
    private static void sums(UsageReporter reporter, String client) throws Throwable {
        Map<String, Long> sums = sums(reporter);
        long names = sums.keySet().stream().filter(name -> name.startsWith("mallory/")).count();
        System.out.println(names + " " + sums.get("mallory/<others>") + " " + sums.get(client));
    }

    /** Sensors on the hand-set clock, which a reporter follows whose own thread has ended. */
    private static Metrics metricsOf(UsageReporter reporter) throws InterruptedException {
        Metrics metrics = new Metrics(QUOTA, List.of(reporter), CLOCK, false);
        reporter.stop();
        return metrics;
    }

    private static UsageReporter reporter() {
        return reporter(Map.of());
    }

    private static UsageReporter reporter(Map<String, String> settings) {
        Map<String, String> config = new HashMap<>(Map.of("node.id", "1", "kquota.reporter.bootstrap.servers", "127.0.0.1:1"));
        settings.forEach((name, value) -> config.put(UsageReporter.PREFIX + name, value));
        UsageReporter reporter = new UsageReporter();
        reporter.configure(config);
        return reporter;
    }
}
