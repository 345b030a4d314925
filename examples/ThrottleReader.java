import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Prints which client is throttled until when: java -cp 'kafka/libs/*' ThrottleReader.java broker:9092 quota.throttle.v1 */
public class ThrottleReader {
    public static void main(String[] args) {
        Map<String, Object> config = Map.of("bootstrap.servers", args[0], "isolation.level", "read_committed",
                "auto.offset.reset", "earliest", "enable.auto.commit", "false");
        Map<String, Long> untilMs = new HashMap<>(); // by record key: [cluster, broker_id, user, client_id]
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = consumer.partitionsFor(args[1]).stream()
                    .map(found -> new TopicPartition(found.topic(), found.partition())).toList();
            consumer.assign(partitions); // no consumer group: every reader needs every record, from the start
            consumer.seekToBeginning(partitions);
            while (true) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    if (record.value() == null) continue;
                    boolean throttles = record.value().contains("\"action\":\"throttle\"");
                    long until = throttles ? Long.parseLong(record.value()
                            .replaceFirst(".*\"throttled_until_ms\":(\\d+).*", "$1")) : 0;
                    untilMs.put(record.key(), until); // a client may go on at its end, even if no further record comes
                    long leftMs = Math.max(until - System.currentTimeMillis(), 0);
                    System.out.println(record.key() + (leftMs > 0 ? " waits " + leftMs + " ms" : " may go on"));
                }
            }
        }
    }
}
