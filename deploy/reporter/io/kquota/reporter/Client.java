package io.kquota.reporter;

import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.MetricName;

/** A {@code <user, client-id>}, or several of a user in one sum, and what was read of it and is not sent yet. */
final class Client {
    static final int PRODUCED = 0, FETCHED = 1, REQUEST_TIME = 2, THROTTLED = 3;
    /** The largest value of a measure that a reader of usage events accepts; a larger sum goes in several events. */
    static final long LARGEST_MEASURE = 1L << 40;
    private static final String[] FIELDS = {"produced_bytes", "fetched_bytes", "io_time_ns", "broker_throttle_ms"};
    private static final double NS_PER_PERCENT_SECOND = 1e7;

    /** What one event holds; `has` has a bit for each measure that it has. */
    static final class Event {
        final Client client;
        final long atMs;
        final long[] amounts = new long[FIELDS.length];
        int has;
        long requests;

        Event(Client client, long atMs) {
            this.client = client;
            this.atMs = atMs;
        }
    }

    final String user;
    final String clientId;
    private final String names;
    private final long[] unsent = new long[FIELDS.length];
    private int has;
    private long sinceMs;
    private double partOfNs;
    private long requests;
    private long halfRequests;
    /** Sensors whose usage goes here. */
    int sensors;
    /** Sensors of request time among them. */
    int requestSensors;
    /** The last round in which something was recorded. */
    long usedInRound;
    /** Whether {@link Clients} knows it no longer. */
    boolean isForgotten;

    /** Whether it is no client, but has the time of requests that Kafka charges to none (KIP-124). */
    final boolean isExempt;

    /** brokerId: of the broker whose sensors these are. */
    Client(String user, String clientId, String brokerId, boolean isExempt) {
        this.user = user;
        this.clientId = clientId;
        this.isExempt = isExempt;
        this.names = ",\"user\":" + quoted(user) + ",\"client_id\":" + quoted(clientId)
                + ",\"broker_id\":" + quoted(brokerId);
    }

    /** Whether it is the sum of several clients of a user. */
    boolean isShared() {
        return clientId.equals(Clients.OTHERS);
    }

    /** What its names take in an event. */
    int nameChars() {
        return names.length();
    }

    /** Which measure a metric is; -1 for none. */
    static int kindOf(MetricName name) {
        int group = name.group().equals("Produce") ? PRODUCED
                : name.group().equals("Fetch") ? FETCHED : name.group().equals("Request") ? REQUEST_TIME : -1;
        if (isExempt(name)) return REQUEST_TIME;
        if (group < 0 || !name.tags().containsKey("user")) return -1;
        if (name.name().equals("throttle-time")) return THROTTLED;
        return name.name().equals(group == REQUEST_TIME ? "request-time" : "byte-rate") ? group : -1;
    }

    /** Whether a metric is of requests that Kafka charges to no client. */
    static boolean isExempt(MetricName name) {
        return name.group().equals("Request") && name.name().equals("exempt-request-time");
    }

    /** Add what was recorded into a sensor. */
    void add(int kind, double value, long count, long nowMs) {
        if (!canSend()) sinceMs = nowMs;
        has |= 1 << kind;
        if (kind == REQUEST_TIME) {
            double ns = value * NS_PER_PERCENT_SECOND + partOfNs;
            long whole = (long) Math.floor(ns);
            partOfNs = ns - whole;
            unsent[kind] += whole;
            halfRequests += count; // the request's own time, and later that of its response in the network thread
        } else {
            unsent[kind] += Math.round(value);
            if (requestSensors == 0 && kind != THROTTLED) requests += count;
        }
    }

    /** Take what can be sent as one event; null if there is nothing. */
    Event take() {
        Event event = new Event(this, sinceMs);
        for (int kind = 0; kind < FIELDS.length; kind++) {
            // Less than nothing: a fetch was taken back after its bytes were sent. Later fetches make up for it.
            if ((has & 1 << kind) == 0 || unsent[kind] < 0) continue;
            event.has |= 1 << kind;
            event.amounts[kind] = Math.min(unsent[kind], LARGEST_MEASURE);
            unsent[kind] -= event.amounts[kind];
            if (unsent[kind] == 0) has &= ~(1 << kind);
        }
        if (event.has == 0) return null;
        // Its bytes come with a request's first half: counted by the second one, they could pass for fewer requests.
        long begun = (halfRequests + 1) / 2;
        event.requests = Math.min(requests + begun, LARGEST_MEASURE);
        halfRequests -= 2 * begun; // -1: the second half of the last one is to come
        requests = 0;
        return event;
    }

    /** Put back what was not stored. */
    void putBack(Event event) {
        sinceMs = !canSend() ? event.atMs : Math.min(sinceMs, event.atMs);
        has |= event.has;
        for (int kind = 0; kind < FIELDS.length; kind++) unsent[kind] += event.amounts[kind];
        requests += event.requests;
    }

    /** Add what another client has, for which there is no room. */
    void takeOver(Client former) {
        sinceMs = !canSend() ? former.sinceMs : Math.min(sinceMs, former.sinceMs);
        has |= former.has;
        for (int kind = 0; kind < FIELDS.length; kind++) unsent[kind] += former.unsent[kind];
        partOfNs += former.partOfNs;
        requests += former.requests;
        halfRequests += former.halfRequests;
    }

    /** Whether something was read that is not sent, also if it is less than nothing. */
    boolean hasAny() {
        return has != 0;
    }

    /** Whether something can be sent now. */
    boolean canSend() {
        for (int kind = 0; kind < FIELDS.length; kind++) if ((has & 1 << kind) != 0 && unsent[kind] >= 0) return true;
        return false;
    }

    /** Append an event as JSON. */
    void append(Event event, StringBuilder out) {
        out.append("{\"event_time_ms\":").append(event.atMs).append(names);
        for (int kind = 0; kind < FIELDS.length; kind++)
            if ((event.has & 1 << kind) != 0)
                out.append(",\"").append(FIELDS[kind]).append("\":").append(event.amounts[kind]);
        if (isExempt) out.append(",\"throttle_exempt\":true");
        out.append(",\"request_count\":").append(event.requests).append('}');
    }

    /** A JSON string. Half a character becomes a question mark, as in UTF-8. */
    static String quoted(String text) {
        StringBuilder out = new StringBuilder(text.length() + 2).append('"');
        String valid = new String(text.getBytes(StandardCharsets.UTF_8), StandardCharsets.UTF_8);
        for (int i = 0; i < valid.length(); i++) {
            char c = valid.charAt(i);
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }
}
