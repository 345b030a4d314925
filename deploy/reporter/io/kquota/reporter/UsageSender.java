package io.kquota.reporter;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordBatchTooLargeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Sends the events of clients as messages, each of them once. Only for the reporter's thread. */
final class UsageSender {
    /** What may be on its way. If the topic is away, what comes after that is kept as one sum per client. */
    private static final int MOST_UNCONFIRMED_BYTES = 4 << 20;
    private static final long PATIENCE_MS = 10_000;
    private static final long FIRST_PAUSE_MS = 500;
    private static final long LONGEST_PAUSE_MS = 5_000;
    private static final int MESSAGE_CHARS = 128 << 10;
    private static final int CHARS_OF_MEASURES = 100; // of an event, beside its names
    private static final Logger log = LoggerFactory.getLogger(UsageReporter.class);

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

        boolean isTooLarge() {
            return failure instanceof RecordTooLargeException || failure instanceof RecordBatchTooLargeException;
        }
    }

    private final Queue<Sent> settled = new ConcurrentLinkedQueue<>();
    private final OnceAMinute lossLimit = new OnceAMinute();
    private final Map<String, Object> producerConfig = new HashMap<>();
    private final String topic;
    private final Clients clients;
    private KafkaProducer<byte[], byte[]> producer;
    private int unconfirmedBytes;
    /** Messages that were too large, in two halves. */
    private final Queue<List<Client.Event>> divided = new ArrayDeque<>();
    private long progressMs;
    private long producerMadeMs;
    private long notBeforeMs;
    private long pauseMs = FIRST_PAUSE_MS;
    private boolean isProducerBroken;
    private boolean isStuck;
    private Throwable lastFailure;
    /** Events that may not be stored, and are not sent again. */
    volatile long lostEvents;

    /** own: the reporter's settings, of which all that are not its own are the producer's. */
    UsageSender(Map<String, String> own, String clientId, Clients clients) {
        this.topic = own.getOrDefault("topic", "quota.usage.v1");
        this.clients = clients;
        producerConfig.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, "gzip"); // what every consumer can read
        producerConfig.put(ProducerConfig.COMPRESSION_GZIP_LEVEL_CONFIG, 1);
        producerConfig.put(ProducerConfig.RETRY_BACKOFF_MAX_MS_CONFIG, LONGEST_PAUSE_MS); // each try is a line in the log
        producerConfig.put(ProducerConfig.RECONNECT_BACKOFF_MAX_MS_CONFIG, LONGEST_PAUSE_MS);
        producerConfig.putAll(own);
        producerConfig.keySet().removeAll(List.of("topic", "user", "exclude.users", "transactional.id"));
        producerConfig.put(ProducerConfig.CLIENT_ID_CONFIG, clientId);
        // A message that was accepted is sent until it is stored, once: it never becomes unknown by a time-out.
        producerConfig.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, true);
        producerConfig.put(ProducerConfig.ACKS_CONFIG, "all");
        producerConfig.put(ProducerConfig.RETRIES_CONFIG, Integer.MAX_VALUE);
        producerConfig.put(ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, Integer.MAX_VALUE);
        producerConfig.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, 0);
        producerConfig.put(ProducerConfig.LINGER_MS_CONFIG, 0);
        // A batch is one message: Kafka's producer may stand still after it has divided one that is too large.
        producerConfig.put(ProducerConfig.BATCH_SIZE_CONFIG, 0);
        producerConfig.put(ProducerConfig.BUFFER_MEMORY_CONFIG, 4L * MOST_UNCONFIRMED_BYTES);
    }

    /** Where it sends to. */
    @Override
    public String toString() {
        return "topic " + topic + " at " + producerConfig.get(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG);
    }

    /** Send what there is, as far as it is taken. nowMs: of a clock that is never set. */
    void send(long nowMs) {
        for (Sent sent; (sent = settled.poll()) != null; ) settle(sent, nowMs);
        if (!hasUnsent() && unconfirmedBytes == 0) progressMs = nowMs;
        try {
            if (producer != null && isProducerBroken && unconfirmedBytes == 0 && nowMs - producerMadeMs >= PATIENCE_MS)
                close(Duration.ZERO);
            if (producer == null && hasUnsent() && nowMs - producerMadeMs >= (isProducerBroken ? PATIENCE_MS : 0)) {
                producerMadeMs = nowMs;
                isProducerBroken = true;
                producer = new KafkaProducer<>(producerConfig, new ByteArraySerializer(), new ByteArraySerializer());
                isProducerBroken = false;
            }
            boolean goesOn = producer != null && nowMs >= notBeforeMs;
            while (goesOn && hasUnsent() && unconfirmedBytes < MOST_UNCONFIRMED_BYTES)
                goesOn = sendMessage(nowMs);
        } catch (Exception failure) { // KafkaException: settings that make no producer, or one that cannot go on
            lastFailure = failure;
            isProducerBroken = true;
        }
        tellOfTrouble(nowMs);
    }

    /** Give one message to the producer; false if it takes none now. */
    private boolean sendMessage(long nowMs) {
        List<Client.Event> events = divided.isEmpty() ? new ArrayList<>() : divided.remove();
        byte[] value;
        try {
            if (events.isEmpty()) takeInto(events);
            value = messageOf(events);
        } catch (Throwable failure) {
            events.forEach(clients::putBack);
            throw failure;
        }
        if (events.isEmpty()) return true;
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
        if (sent.wasAccepted || sent.isTooLarge()) return true;
        notBeforeMs = nowMs + pauseMs;
        pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
        return false;
    }

    private boolean hasUnsent() {
        return clients.hasUnsent() || !divided.isEmpty();
    }

    /** Take the next events, about as many as make a message; none if nothing is left. */
    private void takeInto(List<Client.Event> events) {
        for (int chars = 0; clients.hasUnsent() && chars < MESSAGE_CHARS; ) {
            Client.Event event = clients.nextEvent();
            if (event == null) continue;
            events.add(event);
            chars += event.client.nameChars() + CHARS_OF_MEASURES;
        }
    }

    private static byte[] messageOf(List<Client.Event> events) {
        StringBuilder text = new StringBuilder();
        for (Client.Event event : events) event.client.append(event, text.append(text.length() > 0 ? "," : "["));
        return text.append(']').toString().getBytes(StandardCharsets.UTF_8);
    }

    private void settle(Sent sent, long nowMs) {
        unconfirmedBytes -= sent.sizeBytes;
        if (sent.failure == null) {
            progressMs = nowMs;
            pauseMs = FIRST_PAUSE_MS;
            return;
        }
        lastFailure = sent.failure;
        boolean isRefused = sent.isTooLarge() || sent.failure instanceof AuthorizationException
                || sent.failure instanceof AuthenticationException || sent.failure instanceof InvalidTopicException;
        isProducerBroken |= sent.wasAccepted && !sent.isTooLarge();
        if (sent.wasAccepted && !isRefused) {
            lostEvents += sent.events.size();
            log.warn("kquota-reporter does not know whether {} usage events are stored, and does not send them again: {}",
                    sent.events.size(), UsageReporter.cause(sent.failure));
        } else if (sent.isTooLarge()) {
            divide(sent.events, sent.failure);
        } else {
            sent.events.forEach(clients::putBack);
        }
    }

    /** Send a message that was too large in two; if it was one event, its client has long names, and loses them. */
    private void divide(List<Client.Event> events, Exception failure) {
        int half = events.size() / 2;
        if (half > 0) {
            divided.add(events.subList(0, half));
            divided.add(events.subList(half, events.size()));
        } else if (!clients.putBackShorter(events.get(0))) {
            lostEvents++;
            if (lossLimit.isDue())
                log.warn("kquota-reporter cannot store usage of a user with a long name: {}", UsageReporter.cause(failure));
        }
    }

    private void tellOfTrouble(long nowMs) {
        if (!isStuck && nowMs - progressMs >= PATIENCE_MS) {
            isStuck = true;
            log.warn("kquota-reporter has not been able to send for {} s; usage is kept and sent later. Last failure: {}",
                    (nowMs - progressMs) / 1_000, lastFailure == null ? "none, no answer" : UsageReporter.cause(lastFailure));
        } else if (isStuck && nowMs - progressMs < PATIENCE_MS) {
            isStuck = false;
            log.warn("kquota-reporter sends again");
        }
    }

    /** Close the producer; nothing is on its way, or it is given up. */
    void close(Duration patience) {
        KafkaProducer<byte[], byte[]> former = producer;
        producer = null;
        try {
            if (former != null) former.close(patience);
        } catch (Throwable failure) {
            log.warn("kquota-reporter's producer did not close: {}", UsageReporter.cause(failure));
        }
    }
}
