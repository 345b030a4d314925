package io.kquota.reporter;

import java.lang.management.ManagementFactory;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.management.JMException;
import javax.management.ObjectName;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends what the broker's own quota sensors record, per user, client-id and quota type, to kquota's usage topic, and the
 * time of requests that the broker charges to no client, under the reporter's own user.
 *
 * A thread of its own reads and sends, every {@link #PERIOD_MS}; the broker's threads only enter sensors into a map.
 * What goes wrong here is logged and stays here: a Kafka whose classes look different switches the reporter off. What
 * goes wrong with one sensor, or in one round, does not.
 *
 * No client can hide behind a name: the client-id of the reporter's own producer is a random one.
 */
public final class UsageReporter implements MetricsReporter, UsageReporterMXBean {
    static final String PREFIX = "kquota.reporter.";
    static final String NAME = "kquota-reporter";
    static final String BEAN = "kquota:type=reporter";
    static final String NOT_SIGNED_IN = "ANONYMOUS"; // as Kafka calls a client that did not sign in
    static final long PERIOD_MS = 250;
    private static final Pattern JAAS_USER = Pattern.compile("\\busername\\s*=\\s*(?:\"([^\"]*)\"|([^\\s;]+))");
    private static final Logger log = LoggerFactory.getLogger(UsageReporter.class);

    /** A sensor of the broker, and which client has what is recorded into it. */
    private static final class Sensor extends SampleReader.Place {
        final KafkaMetric metric;
        final int kind;
        Client client;
        boolean isDone;

        Sensor(KafkaMetric metric, int kind) {
            this.metric = metric;
            this.kind = kind;
        }
    }

    private final Map<KafkaMetric, Sensor> sensors = new ConcurrentHashMap<>();
    private final Queue<Sensor> removed = new ConcurrentLinkedQueue<>();
    private final CountDownLatch closing = new CountDownLatch(1);
    private final AtomicLong unreadableSensors = new AtomicLong();
    private final OnceAMinute skipLimit = new OnceAMinute();
    private final OnceAMinute failureLimit = new OnceAMinute();
    private final OnceAMinute sumLimit = new OnceAMinute();
    private volatile int clientCount;
    private volatile int summedSensorCount;
    private volatile long keptMs = Long.MAX_VALUE;
    private volatile boolean isOff;
    final String ownClientId = NAME + "-" + UUID.randomUUID();
    private final Set<String> leftOutUsers = new HashSet<>();
    private final long startedNs = System.nanoTime();
    private boolean isShown;
    private Thread thread;
    Clients clients;
    private UsageSender sender;
    private SampleReader reader;

    // From here on: only the reporter's thread.
    /** Sensors that a round looks at; where there are more, rounds take turns. A client has up to six. */
    int mostLooks = 100_000;
    private Iterator<Sensor> turn = Collections.emptyIterator();
    private long lastTurnNs;

    @Override
    public void configure(Map<String, ?> config) {
        try {
            Map<String, String> own = new HashMap<>();
            config.forEach((name, value) -> {
                if (name.startsWith(PREFIX) && value != null) own.put(name.substring(PREFIX.length()), value.toString());
            });
            Object id = config.get("node.id") != null ? config.get("node.id") : config.get("broker.id");
            String ownUser = own.getOrDefault("user", signedInUser(own));
            clients = new Clients(id == null ? "" : id.toString(), ownUser);
            if (!ownUser.equals(NOT_SIGNED_IN)) leftOutUsers.add(ownUser); // others have that one, too
            for (String user : own.getOrDefault("exclude.users", "").split(",")) leftOutUsers.add(user.trim());
            leftOutUsers.remove("");
            sender = new UsageSender(own, ownClientId, clients);
            if (!own.containsKey("bootstrap.servers")) switchOff(PREFIX + "bootstrap.servers is not set", null);
        } catch (Throwable failure) {
            switchOff("its settings cannot be read", failure);
        }
    }

    /** The user as whom the reporter's settings sign in. */
    private static String signedInUser(Map<String, String> own) {
        if (!own.getOrDefault("security.protocol", "").toUpperCase().startsWith("SASL")) return NOT_SIGNED_IN;
        Matcher found = JAAS_USER.matcher(own.getOrDefault("sasl.jaas.config", ""));
        if (!found.find()) return NOT_SIGNED_IN;
        return found.group(1) != null ? found.group(1) : found.group(2);
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
        if (isOff) return;
        try {
            reader = SampleReader.open();
            metrics.forEach(this::metricChange);
            for (Sensor sensor : sensors.values()) passOver(sensor);
            thread = new Thread(this::run, NAME);
            thread.setDaemon(true);
            thread.setContextClassLoader(UsageReporter.class.getClassLoader());
            thread.start();
            show();
            log.info("kquota-reporter sends the usage of broker {} to {}, without that of users {}", clients.brokerId, sender,
                    leftOutUsers);
        } catch (Throwable failure) {
            switchOff("Kafka's classes are not as this release knows them", failure);
        }
    }

    /** What was recorded before the reporter was there is not its own, or a former one has sent it. */
    private void passOver(Sensor sensor) throws Throwable {
        try {
            reader.read(sensor.metric, sensor);
        } catch (Exception failure) {
            skip(sensor.metric, failure);
        }
    }

    @Override
    public void metricChange(KafkaMetric metric) {
        if (isOff) return;
        try {
            int kind = Client.kindOf(metric.metricName());
            if (kind < 0) return;
            MetricConfig config = metric.config();
            keptMs = Math.min(keptMs, config.samples() * config.timeWindowMs()); // the same for all sensors of clients
            sensors.computeIfAbsent(metric, one -> new Sensor(one, kind));
        } catch (Throwable failure) {
            skip(metric, failure);
        }
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
        Sensor sensor = sensors.remove(metric);
        if (sensor != null && !isOff) removed.add(sensor);
    }

    /** Go on without a sensor. */
    private void skip(KafkaMetric metric, Throwable failure) {
        sensors.remove(metric);
        unreadableSensors.incrementAndGet();
        if (skipLimit.isDue())
            log.warn("kquota-reporter cannot read {} sensors so far, and goes on without them. The last one: {}",
                    unreadableSensors, cause(failure));
    }

    @Override
    public void close() {
        hide();
        stop();
    }

    /** End the thread. */
    void stop() {
        closing.countDown();
        try {
            if (thread != null) thread.join(2_000);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public long getSensors() {
        return sensors.size();
    }

    @Override
    public long getClients() {
        return clientCount;
    }

    @Override
    public long getSummedSensors() {
        return summedSensorCount;
    }

    @Override
    public long getUnreadableSensors() {
        return unreadableSensors.get();
    }

    @Override
    public long getLostEvents() {
        return sender == null ? 0 : sender.lostEvents;
    }

    private void show() {
        try {
            ManagementFactory.getPlatformMBeanServer().registerMBean(this, new ObjectName(BEAN));
            isShown = true;
        } catch (JMException | RuntimeException failure) {
            log.warn("kquota-reporter's counts are not shown as {}: {}", BEAN, cause(failure));
        }
    }

    private void hide() {
        try {
            if (isShown) ManagementFactory.getPlatformMBeanServer().unregisterMBean(new ObjectName(BEAN));
        } catch (JMException | RuntimeException failure) {
            log.warn("kquota-reporter's counts stay in {}: {}", BEAN, cause(failure));
        }
    }

    /** Log why, and do nothing from now on. */
    private void switchOff(String why, Throwable failure) {
        if (isOff) return;
        isOff = true;
        log.error("kquota-reporter is off, the broker goes on: {}{}", why, failure == null ? "" : ": " + cause(failure));
        sensors.clear();
        removed.clear();
    }

    static String cause(Throwable failure) {
        Throwable root = failure;
        while (root.getCause() != null && root.getCause() != root) root = root.getCause();
        return root == failure ? failure.toString() : failure + " (" + root + ")";
    }

    private void run() {
        lastTurnNs = System.nanoTime();
        try {
            boolean isLast = false;
            while (!isOff && !isLast) {
                isLast = closing.await(PERIOD_MS, TimeUnit.MILLISECONDS);
                round();
            }
        } catch (InterruptedException interrupted) {
            switchOff("its thread was interrupted", interrupted);
        }
        sender.close(Duration.ofSeconds(1));
    }

    void round() {
        try {
            read(System.currentTimeMillis());
            sender.send((System.nanoTime() - startedNs) / 1_000_000);
        } catch (Throwable failure) {
            tellOf(failure);
        }
    }

    private void tellOf(Throwable failure) {
        try {
            if (failureLimit.isDue()) log.error("kquota-reporter failed in a round, and goes on", failure);
        } catch (Throwable again) { // such as an OutOfMemoryError: not even the line can be written
            failureLimit.undo();
        }
    }

    /** Look at the sensors; what was recorded into one that was removed since is read, too. */
    void read(long nowMs) throws Throwable {
        clients.beginRound();
        if (!turn.hasNext() || sensors.size() <= mostLooks) turn = sensors.values().iterator();
        for (int looks = 0; looks < mostLooks && turn.hasNext(); looks++) read(turn.next(), nowMs);
        if (!turn.hasNext()) tellOfGap();
        for (Sensor sensor; (sensor = removed.poll()) != null; ) {
            read(sensor, nowMs);
            leave(sensor);
        }
        clientCount = clients.size();
        summedSensorCount = clients.summedSensors();
        if (summedSensorCount > 0 && sumLimit.isDue())
            log.warn("kquota-reporter has {} sensors in sums that clients of one user share, as {}: users have more than {}"
                    + " active client-ids, or long ones", summedSensorCount, Clients.OTHERS, Clients.MOST_OF_USER);
    }

    private void read(Sensor sensor, long nowMs) throws Throwable {
        try {
            if (sensor.isDone || !reader.mayHaveMore(sensor) || !reader.read(sensor.metric, sensor)) return;
            if (sensor.client == null || sensor.client.isShared() || sensor.client.isForgotten)
                assign(sensor, clientOf(sensor.metric.metricName()));
            if (sensor.client != null) clients.record(sensor.client, sensor.kind, reader.value, reader.count, nowMs);
        } catch (Exception | LinkageError failure) {
            leave(sensor);
            skip(sensor.metric, failure);
        }
    }

    /** From now on the usage of a sensor goes to this client; to none if it is null. */
    private void assign(Sensor sensor, Client client) {
        Client former = sensor.client;
        if (client == former) return;
        sensor.client = client;
        if (client != null) clients.countSensor(client, sensor.kind, 1);
        if (former != null) clients.countSensor(former, sensor.kind, -1);
    }

    /** Read a sensor no more. */
    private void leave(Sensor sensor) {
        sensor.isDone = true;
        assign(sensor, null);
    }

    /** The client that a sensor names; null if it is not reported. */
    private Client clientOf(MetricName name) {
        if (Client.isExempt(name)) return clients.exempt;
        Map<String, String> tags = name.tags();
        String user = userOf(tags.get("user")), clientId = tags.get("client-id");
        if (leftOutUsers.contains(user) || ownClientId.equals(clientId)) return null;
        // Under a quota of a client-id alone a sensor has no user.
        return clients.of(user.isEmpty() ? NOT_SIGNED_IN : user, clientId == null ? "" : clientId);
    }

    private static String userOf(String tag) {
        try {
            return tag == null ? "" : URLDecoder.decode(tag, StandardCharsets.UTF_8);
        } catch (RuntimeException failure) {
            return tag; // of a plug-in that does not write names as Kafka does
        }
    }

    /** Windows are reused; the thread must have looked before. */
    private void tellOfGap() {
        long nowNs = System.nanoTime();
        long gapMs = (nowNs - lastTurnNs) / 1_000_000;
        lastTurnNs = nowNs;
        if (gapMs >= keptMs)
            log.warn("kquota-reporter looked at all sensors only after {} ms, and they keep {} ms: usage between may be"
                    + " missing", gapMs, keptMs);
    }
}
