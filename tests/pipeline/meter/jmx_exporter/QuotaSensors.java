import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.JmxReporter;
import org.apache.kafka.common.metrics.KafkaMetricsContext;
import org.apache.kafka.common.metrics.Measurable;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.utils.internals.Sanitizer;
import org.apache.kafka.common.utils.Time;

/**
 * Shows quota sensors as JMX beans, by Kafka's own JmxReporter, until it is killed. Each argument is one:
 * {@code type&attribute&rate&user&client-id}, each encoded as in a URL; a name that is "" is no tag.
 */
public class QuotaSensors {
    /** With the setting of a broker that the rules ask for. */
    private static JmxReporter reporter() {
        JmxReporter reporter = new JmxReporter();
        reporter.configure(Map.of("metrics.jmx.include", "(?s).*"));
        return reporter;
    }

    public static void main(String[] sensors) throws Exception {
        try (Metrics metrics = new Metrics(new MetricConfig(), List.of(reporter()), Time.SYSTEM,
            new KafkaMetricsContext("kafka.server"))) {
            for (String sensor : sensors) {
                String[] parts = sensor.split("&", -1);
                double rate = Double.parseDouble(parts[2]);
                Map<String, String> tags = new LinkedHashMap<>();
                tags.put("user", Sanitizer.sanitize(URLDecoder.decode(parts[3], StandardCharsets.UTF_8)));
                tags.put("client-id", URLDecoder.decode(parts[4], StandardCharsets.UTF_8));
                tags.values().removeIf(String::isEmpty);
                metrics.addMetric(metrics.metricName(parts[1], parts[0], "", tags), (Measurable) (config, now) -> rate);
            }
            System.out.println("shown");
            Thread.sleep(Long.MAX_VALUE);
        }
    }
}
