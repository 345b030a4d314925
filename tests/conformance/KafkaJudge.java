import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import org.apache.kafka.server.quota.ClientQuotaEntity.ConfigEntity;
import org.apache.kafka.server.quota.ClientQuotaManager;
import org.apache.kafka.server.quota.QuotaType;

/**
 * Plays quota sessions on the quota managers of the Kafka release on the class path.
 *
 * <p>One session a line on stdin, in the format of sessions.jsonl.gz; the same line with what Kafka answered on stdout:
 * `throttle_time_ms`, `sensor` and `bound` of every `record` step. Time is what the steps say it is.
 */
public final class KafkaJudge {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final HandSetClock clock = new HandSetClock();
    private final ClientQuotaManager manager;
    private final boolean requestTime;

    private KafkaJudge(JsonNode session) throws ReflectiveOperationException {
        int windowSeconds = session.get("sample_window_ms").asInt() / 1000;
        ClientQuotaManagerConfig config =
                new ClientQuotaManagerConfig(session.get("num_samples").asInt(), windowSeconds);
        Metrics metrics = new Metrics(new MetricConfig(), List.of(), clock);
        String quotaType = session.get("quota_type").asText();
        requestTime = quotaType.equals("request_percentage");
        if (requestTime) {
            Constructor<?> constructor = requestQuotas().getConstructors()[0];
            manager = (ClientQuotaManager) constructor.newInstance(config, metrics, clock, "", Optional.empty());
        } else {
            QuotaType type = quotaType.equals("producer_byte_rate") ? QuotaType.PRODUCE : QuotaType.FETCH;
            manager = new ClientQuotaManager(config, metrics, type, clock, "");
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader sessions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = sessions.readLine(); line != null; line = sessions.readLine()) {
            JsonNode session = JSON.readTree(line);
            KafkaJudge judge = new KafkaJudge(session);
            for (JsonNode step : session.get("steps")) {
                judge.play((ObjectNode) step);
            }
            judge.manager.initiateShutdown();
            answers.println(JSON.writeValueAsString(session));
            answers.flush();
        }
        Runtime.getRuntime().halt(0); // the managers' reaper threads take a second to notice that they may end
    }

    private void play(ObjectNode step) throws Exception {
        clock.nowMs = step.get("t").asLong();
        if (step.get("op").asText().equals("quota")) {
            Optional<Quota> bound = text(step, "bound").map(value -> Quota.upperBound(Double.parseDouble(value)));
            manager.updateQuota(user(step), client(step), bound);
            return;
        }
        KafkaPrincipal principal = new KafkaPrincipal(KafkaPrincipal.USER_TYPE, step.get("user").asText());
        Session session = new Session(principal, InetAddress.getLoopbackAddress());
        String clientId = step.get("client_id").asText();
        double value = requestTime ? percent(step.get("value").asLong()) : step.get("value").asDouble();
        int throttleTimeMs = manager.maybeRecordAndGetThrottleTimeMs(session, clientId, value, clock.nowMs);
        Map<String, String> tags = manager.getOrCreateQuotaSensors(session, clientId).metricTags();
        double bound = manager.quota(principal, clientId).bound();
        step.put("throttle_time_ms", throttleTimeMs);
        step.putArray("sensor")
                .add(tags.get(ClientQuotaManager.USER_TAG))
                .add(tags.get(ClientQuotaManager.CLIENT_ID_TAG));
        step.put("bound", bound == Long.MAX_VALUE ? null : (Double) bound);
    }

    private static Optional<ConfigEntity> user(JsonNode step) {
        return text(step, "user").map(name -> name.equals("<default>")
                ? ClientQuotaManager.DEFAULT_USER_ENTITY
                : new ClientQuotaManager.UserEntity(
                        new Session(new KafkaPrincipal(KafkaPrincipal.USER_TYPE, name), null).sanitizedUser));
    }

    private static Optional<ConfigEntity> client(JsonNode step) {
        return text(step, "client_id").map(name -> name.equals("<default>")
                ? ClientQuotaManager.DEFAULT_USER_CLIENT_ID
                : new ClientQuotaManager.ClientIdEntity(name));
    }

    private static Optional<String> text(JsonNode step, String name) {
        JsonNode value = step.get(name);
        return value == null || value.isNull() ? Optional.empty() : Optional.of(value.asText());
    }

    /** The class that 4.4 has moved. */
    private static Class<?> requestQuotas() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.kafka.server.quota.ClientRequestQuotaManager");
        } catch (ClassNotFoundException older) {
            return Class.forName("kafka.server.ClientRequestQuotaManager");
        }
    }

    /** Kafka's own conversion; private there, and called with a request that only a broker can make. */
    private double percent(long timeNs) throws ReflectiveOperationException {
        Method conversion = requestQuotas().getDeclaredMethod("nanosToPercentage", long.class);
        conversion.setAccessible(true);
        return (double) conversion.invoke(manager, timeNs);
    }

    /** A clock that stands still between steps. */
    private static final class HandSetClock implements Time {
        private volatile long nowMs;

        @Override
        public long milliseconds() {
            return nowMs;
        }

        @Override
        public long nanoseconds() {
            return nowMs * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
            throw new UnsupportedOperationException("nothing sleeps here");
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException("nothing waits here");
        }
    }
}
