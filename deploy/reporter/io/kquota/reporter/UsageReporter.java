package io.kquota.reporter;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordBatchTooLargeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Sanitizer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends what the broker's own quota sensors record, per user, client-id and quota type, to kquota's usage topic.
 *
 * A thread of its own reads and sends, every {@link #PERIOD_MS}; the broker's threads only enter sensors into a map.
 * What goes wrong here is logged and stays here: a Kafka whose classes look different switches the reporter off.
 */
public final class UsageReporter implements MetricsReporter {
    static final String PREFIX = "kquota.reporter.";
    static final String CLIENT_ID = "kquota-reporter";
    static final String NOT_SIGNED_IN = "ANONYMOUS"; // as Kafka calls a client that did not sign in
    static final long PERIOD_MS = 250;
    /** Sensors that are followed: three quota types with rate and throttle time are six for a client. */
    static final int MOST_SENSORS = 200_000;
    /** What may be on its way. If the topic is away, what comes after that is kept as one sum per client. */
    static final int MOST_UNCONFIRMED_BYTES = 4 << 20;
    private static final long PATIENCE_MS = 10_000;
    private static final long FIRST_PAUSE_MS = 500;
    private static final long LONGEST_PAUSE_MS = 5_000;
    private static final int MESSAGE_BYTES = 128 << 10;
    private static final Pattern JAAS_USER = Pattern.compile("\\busername\\s*=\\s*(?:\"([^\"]*)\"|([^\\s;]+))");
    private static final Logger log = LoggerFactory.getLogger(UsageReporter.class);

    private static final class Sensor extends SampleReader.Place {
        final KafkaMetric metric;
        final int kind;
        Client client;

        Sensor(KafkaMetric metric, int kind) {
            this.metric = metric;
            this.kind = kind;
        }
    }

    /** A message that was given to the producer, and what became of it. */
    private static final class Sent {
        final List<Client.Event> events;
        final int sizeBytes;
        Exception failure;
        boolean wasAccepted = true;

        Sent(List<Client.Event> events, int sizeBytes) {
            this.events = events;
            this.sizeBytes = sizeBytes;
        }
    }

    private final Map<KafkaMetric, Sensor> sensors = new ConcurrentHashMap<>();
    private final Queue<Sensor> removed = new ConcurrentLinkedQueue<>();
    private final Queue<Sent> settled = new ConcurrentLinkedQueue<>();
    private final CountDownLatch closing = new CountDownLatch(1);
    private final AtomicBoolean isFull = new AtomicBoolean();
    private volatile boolean isOff;
    private Thread thread;
    private String topic;
    private String brokerId;
    private String ownUser;
    private Set<String> excludedUsers = Set.of();
    private final Map<String, Object> producerConfig = new HashMap<>();

    // From here on: only the reporter's thread.
    private SampleReader reader;
    private KafkaProducer<byte[], byte[]> producer;
    final Map<Map.Entry<String, String>, Client> clients = new HashMap<>();
    private final ArrayDeque<Client> unsent = new ArrayDeque<>();
    private int unconfirmedBytes;
    private int messageBytes = MESSAGE_BYTES;
    private long lastTickNs;
    private long progressMs;
    private long producerMadeMs;
    private long notBeforeMs;
    private long pauseMs = FIRST_PAUSE_MS;
    private boolean isProducerBroken;
    private boolean isStuck;
    private Throwable lastFailure;

    @Override
    public void configure(Map<String, ?> config) {
        try {
            Map<String, String> own = new HashMap<>();
            config.forEach((name, value) -> {
                if (name.startsWith(PREFIX) && value != null) own.put(name.substring(PREFIX.length()), value.toString());
            });
            topic = own.getOrDefault("topic", "quota.usage.v1");
            Object id = config.get("node.id") != null ? config.get("node.id") : config.get("broker.id");
            brokerId = id == null ? "" : id.toString();
            Matcher jaasUser = JAAS_USER.matcher(own.getOrDefault("sasl.jaas.config", ""));
            String signedIn = !jaasUser.find() ? NOT_SIGNED_IN : jaasUser.group(1) != null ? jaasUser.group(1) : jaasUser.group(2);
            ownUser = own.getOrDefault("user", signedIn);
            excludedUsers = Set.of(own.getOrDefault("exclude.users", "").split(","));
            own.keySet().removeAll(List.of("topic", "user", "exclude.users", "transactional.id"));
            producerConfig.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, "gzip"); // what every consumer can read
            producerConfig.put(ProducerConfig.COMPRESSION_GZIP_LEVEL_CONFIG, 1);
            producerConfig.put(ProducerConfig.RETRY_BACKOFF_MAX_MS_CONFIG, LONGEST_PAUSE_MS); // each try is a line in the log
            producerConfig.put(ProducerConfig.RECONNECT_BACKOFF_MAX_MS_CONFIG, LONGEST_PAUSE_MS);
            producerConfig.putAll(own);
            producerConfig.put(ProducerConfig.CLIENT_ID_CONFIG, CLIENT_ID);
            // A message that was accepted is sent until it is stored, once: it never becomes unknown by a time-out.
            producerConfig.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, true);
            producerConfig.put(ProducerConfig.ACKS_CONFIG, "all");
            producerConfig.put(ProducerConfig.RETRIES_CONFIG, Integer.MAX_VALUE);
            producerConfig.put(ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, Integer.MAX_VALUE);
            producerConfig.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, 0);
            producerConfig.put(ProducerConfig.LINGER_MS_CONFIG, 0);
            producerConfig.put(ProducerConfig.BATCH_SIZE_CONFIG, 2 * MESSAGE_BYTES);
            producerConfig.put(ProducerConfig.BUFFER_MEMORY_CONFIG, 4L * MOST_UNCONFIRMED_BYTES);
            if (!own.containsKey("bootstrap.servers")) switchOff(PREFIX + "bootstrap.servers is not set", null);
        } catch (Throwable failure) {
            switchOff("its settings cannot be read", failure);
        }
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
        if (isOff) return;
        try {
            reader = SampleReader.open();
            metrics.forEach(this::metricChange);
            // What was recorded before the reporter was there is not its own, or a former one has sent it.
            for (Sensor sensor : sensors.values()) reader.read(sensor.metric, sensor);
            thread = new Thread(this::run, CLIENT_ID);
            thread.setDaemon(true);
            thread.setContextClassLoader(UsageReporter.class.getClassLoader());
            thread.start();
            log.info("kquota-reporter sends the usage of broker {} to topic {} at {}", brokerId, topic,
                    producerConfig.get(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG));
        } catch (Throwable failure) {
            switchOff("Kafka's classes are not as this release knows them", failure);
        }
    }

    @Override
    public void metricChange(KafkaMetric metric) {
        if (isOff) return;
        try {
            int kind = Client.kindOf(metric.metricName());
            if (kind < 0) return;
            if (sensors.size() < MOST_SENSORS) sensors.computeIfAbsent(metric, one -> new Sensor(one, kind));
            else if (!isFull.getAndSet(true))
                log.warn("kquota-reporter follows {} sensors and no more: the usage of further clients is not reported",
                        MOST_SENSORS);
        } catch (Throwable failure) {
            switchOff("a metric cannot be read", failure);
        }
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
        Sensor sensor = sensors.remove(metric);
        if (sensor != null && !isOff) removed.add(sensor);
    }

    @Override
    public void close() {
        closing.countDown();
        try {
            if (thread != null) thread.join(2_000);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
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

    private static String cause(Throwable failure) {
        Throwable root = failure;
        while (root.getCause() != null && root.getCause() != root) root = root.getCause();
        return root == failure ? failure.toString() : failure + " (" + root + ")";
    }

    private void run() {
        lastTickNs = System.nanoTime();
        progressMs = System.currentTimeMillis();
        try {
            boolean isLast = false;
            while (!isOff && !isLast) {
                isLast = closing.await(PERIOD_MS, TimeUnit.MILLISECONDS);
                read(System.currentTimeMillis());
                send(System.currentTimeMillis());
            }
        } catch (Throwable failure) {
            switchOff("it failed", failure);
        }
        closeProducer(Duration.ofSeconds(1));
    }

    /** Read every sensor; what was recorded into one that was removed since, too. */
    void read(long nowMs) throws Throwable {
        tellOfGap();
        for (Sensor sensor : sensors.values()) if (reader.mayHaveMore(sensor)) read(sensor, nowMs);
        for (Sensor sensor; (sensor = removed.poll()) != null; ) {
            read(sensor, nowMs);
            if (sensor.client == null) continue;
            sensor.client.sensors--;
            if (sensor.kind == Client.REQUEST_TIME) sensor.client.requestSensors--;
            if (sensor.client.sensors == 0 && !sensor.client.isQueued) clients.remove(sensor.client.key, sensor.client);
        }
    }

    private void read(Sensor sensor, long nowMs) throws Throwable {
        if (!reader.read(sensor.metric, sensor)) return;
        if (sensor.client == null) {
            Client client = clientOf(sensor.metric);
            if (client == null) return;
            sensor.client = client;
            client.sensors++;
            if (sensor.kind == Client.REQUEST_TIME) client.requestSensors++;
        }
        sensor.client.add(sensor.kind, reader.value, reader.count, nowMs);
        queue(sensor.client);
    }

    /** The client of a sensor; null if it is not reported. */
    private Client clientOf(KafkaMetric metric) {
        Map<String, String> tags = metric.metricName().tags();
        String user = Sanitizer.desanitize(tags.get("user"));
        String clientId = tags.getOrDefault("client-id", "");
        if (excludedUsers.contains(user) && !user.isEmpty()) return null;
        if (user.isEmpty()) user = NOT_SIGNED_IN; // under a quota of a client-id alone
        if (clientId.equals(CLIENT_ID) && user.equals(ownUser)) return null;
        return clients.computeIfAbsent(Map.entry(user, clientId), key -> new Client(key, brokerId));
    }

    private void queue(Client client) {
        if (client.isQueued || !client.canSend()) return;
        client.isQueued = true;
        unsent.add(client);
    }

    /** Windows are reused; the thread must have looked before. */
    private void tellOfGap() {
        long nowNs = System.nanoTime();
        long gapMs = (nowNs - lastTickNs) / 1_000_000;
        lastTickNs = nowNs;
        if (gapMs <= 2 * PERIOD_MS || sensors.isEmpty()) return;
        MetricConfig config = sensors.keySet().iterator().next().config();
        long keptMs = config.samples() * config.timeWindowMs();
        if (gapMs >= keptMs)
            log.warn("kquota-reporter stood still for {} ms, and sensors keep {} ms: usage between may be missing",
                    gapMs, keptMs);
    }

    private void send(long nowMs) {
        for (Sent sent; (sent = settled.poll()) != null; ) settle(sent, nowMs);
        if (unsent.isEmpty() && unconfirmedBytes == 0) progressMs = nowMs;
        try {
            if (producer != null && isProducerBroken && unconfirmedBytes == 0 && nowMs - producerMadeMs >= PATIENCE_MS)
                closeProducer(Duration.ZERO);
            if (producer == null && !unsent.isEmpty() && nowMs - producerMadeMs >= (isProducerBroken ? PATIENCE_MS : 0)) {
                producerMadeMs = nowMs;
                isProducerBroken = true;
                producer = new KafkaProducer<>(producerConfig, new ByteArraySerializer(), new ByteArraySerializer());
                isProducerBroken = false;
            }
            boolean goesOn = producer != null && nowMs >= notBeforeMs;
            while (goesOn && !unsent.isEmpty() && unconfirmedBytes < MOST_UNCONFIRMED_BYTES)
                goesOn = sendMessage(nowMs);
        } catch (Exception failure) { // KafkaException: settings that make no producer, or one that cannot go on
            lastFailure = failure;
            isProducerBroken = true;
        }
        tellOfTrouble(nowMs);
        dropSurplus();
    }

    /** The next event to send, of the client that waits longest; null if there is none, or less than nothing of it. */
    Client.Event nextEvent() {
        Client client = unsent.poll();
        if (client == null) return null;
        client.isQueued = false;
        Client.Event event = client.take();
        queue(client);
        if (client.sensors == 0 && !client.isQueued) clients.remove(client.key, client);
        return event;
    }

    /** Give one message to the producer; false if it did not take it. */
    private boolean sendMessage(long nowMs) {
        StringBuilder text = new StringBuilder("[");
        List<Client.Event> events = new ArrayList<>();
        while (!unsent.isEmpty() && text.length() < messageBytes) {
            Client.Event event = nextEvent();
            if (event == null) continue;
            if (!events.isEmpty()) text.append(',');
            event.client.append(event, text);
            events.add(event);
        }
        if (events.isEmpty()) return true;
        byte[] value = text.append(']').toString().getBytes(StandardCharsets.UTF_8);
        Sent sent = new Sent(events, value.length);
        unconfirmedBytes += value.length;
        Thread self = Thread.currentThread();
        try {
            producer.send(new ProducerRecord<>(topic, value), (stored, failure) -> {
                sent.failure = failure;
                if (Thread.currentThread() == self) sent.wasAccepted = false;
                settled.add(sent);
            });
        } catch (RuntimeException failure) {
            sent.failure = failure;
            sent.wasAccepted = false;
            settled.add(sent);
            throw failure;
        }
        if (!sent.wasAccepted) {
            notBeforeMs = nowMs + pauseMs;
            pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
        }
        return sent.wasAccepted;
    }

    private void settle(Sent sent, long nowMs) {
        unconfirmedBytes -= sent.sizeBytes;
        if (sent.failure == null) {
            progressMs = nowMs;
            pauseMs = FIRST_PAUSE_MS;
            return;
        }
        lastFailure = sent.failure;
        isProducerBroken |= sent.wasAccepted;
        boolean isTooLarge = sent.failure instanceof RecordTooLargeException
                || sent.failure instanceof RecordBatchTooLargeException;
        if (isTooLarge) messageBytes = Math.max(messageBytes / 2, 1_024);
        boolean isRefused = isTooLarge || sent.failure instanceof AuthorizationException
                || sent.failure instanceof AuthenticationException || sent.failure instanceof InvalidTopicException;
        if (sent.wasAccepted && !isRefused) {
            log.warn("kquota-reporter does not know whether {} usage events are stored, and does not send them again: {}",
                    sent.events.size(), cause(sent.failure));
            return;
        }
        for (Client.Event event : sent.events) {
            Client known = clients.putIfAbsent(event.client.key, event.client);
            Client client = known == null ? event.client : known;
            client.putBack(event);
            queue(client);
        }
    }

    private void tellOfTrouble(long nowMs) {
        if (!isStuck && nowMs - progressMs >= PATIENCE_MS) {
            isStuck = true;
            log.warn("kquota-reporter has not been able to send for {} s; usage is kept and sent later. Last failure: {}",
                    (nowMs - progressMs) / 1_000, lastFailure == null ? "none, no answer" : cause(lastFailure));
        } else if (isStuck && nowMs - progressMs < PATIENCE_MS) {
            isStuck = false;
            log.warn("kquota-reporter sends again");
        }
    }

    /** Clients whose sensors are gone and whose usage cannot be sent are bounded as sensors are. */
    private void dropSurplus() {
        while (clients.size() > MOST_SENSORS && !unsent.isEmpty()) {
            Client oldest = unsent.poll();
            oldest.isQueued = false;
            oldest.take();
            if (oldest.sensors == 0) clients.remove(oldest.key, oldest);
        }
    }

    private void closeProducer(Duration patience) {
        KafkaProducer<byte[], byte[]> former = producer;
        producer = null;
        try {
            if (former != null) former.close(patience);
        } catch (Throwable failure) {
            log.warn("kquota-reporter's producer did not close: {}", cause(failure));
        }
    }
}
