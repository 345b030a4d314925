import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Says when a client must wait and when it may go on, by the rule of docs/gate.md:
 * java -cp 'kafka/libs/*' ThrottleReader.java broker:9092 quota.throttle.v1 CLUSTER USER CLIENT_ID
 */
public class ThrottleReader {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Map<String, Map<String, JsonNode>> throttles = new HashMap<>(); // by user, then by record key
    long unreadable;

    /** The last record of a key counts. A record that cannot be read, or is of another version, holds no client. */
    void take(String key, String value) {
        JsonNode record = null;
        try {
            record = JSON.readTree(value);
        } catch (JsonProcessingException notJson) { // counted below
        }
        if (record == null || record.path("schema_version").asInt() != 2) {
            unreadable++;
            return;
        }
        var ofUser = throttles.computeIfAbsent(record.get("user").asText(), user -> new HashMap<>());
        if (record.get("action").asText().equals("throttle")) ofUser.put(key, record);
        else ofUser.remove(key);
    }

    /** The end of the last throttle that holds a client, as wall-clock time; 0 for none. brokerId may be "". */
    long heldUntilMs(String cluster, String brokerId, String user, String clientId) {
        long untilMs = 0;
        for (JsonNode throttle : throttles.getOrDefault(user, Map.of()).values()) {
            boolean isHere = throttle.get("cluster").asText().equals(cluster)
                    && List.of("", brokerId).contains(throttle.get("broker_id").asText());
            boolean isMine = throttle.get("client_id").isNull() // all client-ids of the user, but these; null is not ""
                    ? !JSON.convertValue(throttle.get("except_client_ids"), List.class).contains(clientId)
                    : throttle.get("client_id").asText().equals(clientId);
            if (isHere && isMine) untilMs = Math.max(untilMs, throttle.get("throttled_until_ms").asLong());
        }
        return untilMs;
    }

    public static void main(String[] args) {
        Map<String, Object> config = Map.of("bootstrap.servers", args[0], "isolation.level", "read_committed",
                "auto.offset.reset", "earliest", "enable.auto.commit", "false");
        var reader = new ThrottleReader();
        boolean mustWait = false;
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = consumer.partitionsFor(args[1]).stream()
                    .map(found -> new TopicPartition(found.topic(), found.partition())).toList();
            consumer.assign(partitions); // no consumer group: every reader needs every record, from the start
            consumer.seekToBeginning(partitions);
            while (true) {
                for (var record : consumer.poll(Duration.ofMillis(200)))
                    if (record.value() != null) reader.take(record.key(), record.value());
                long untilMs = reader.heldUntilMs(args[2], "", args[3], args[4]);
                long leftMs = untilMs - System.currentTimeMillis(); // it ends even if no further record comes
                if (leftMs > 0 != mustWait)
                    System.out.println(args[3] + "/" + args[4] + (leftMs > 0 ? " waits " + leftMs + " ms" : " may go on"));
                mustWait = leftMs > 0;
            }
        }
    }
}
