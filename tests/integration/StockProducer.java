import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A stock Java client that produces as fast as it can: StockProducer.java TOPIC BYTES key=value …, the last ones being
 * its producer.properties. Each second a line on stdout: how long an answer has told it to wait at most, in ms.
 */
public class StockProducer {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        for (int i = 2; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            config.put(pair[0], pair[1]);
        }
        byte[] value = new byte[Integer.parseInt(args[1])];
        var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        Thread sending = new Thread(() -> {
            while (true) { // `send` waits while the producer's memory is full
                producer.send(new ProducerRecord<>(args[0], 0, null, value));
            }
        });
        sending.setDaemon(true);
        sending.start();
        while (true) {
            Thread.sleep(1000);
            System.out.println(longestThrottleMs(producer.metrics()));
        }
    }

    private static double longestThrottleMs(Map<?, ? extends org.apache.kafka.common.Metric> metrics) {
        return metrics.values().stream()
                .filter(metric -> metric.metricName().name().equals("produce-throttle-time-max"))
                .mapToDouble(metric -> (Double) metric.metricValue()).filter(Double::isFinite).max().orElse(0);
    }
}
