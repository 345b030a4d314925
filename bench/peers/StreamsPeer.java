import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Sums of usage by second and client with Kafka Streams: exactly_once_v2, RocksDB, one result for each change at a commit.
 *
 * <p>Arguments: bootstrap servers, input topic, output topic, object or array, state folder, application id.
 *
 * <p>Object messages are keyed by the client, so they are grouped without a repartition topic. Arrays are not: their
 * events are given key and time one by one, and Streams repartitions them.
 */
public final class StreamsPeer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration WINDOW = Duration.ofSeconds(1);
    /** Tasks of a backlog run ahead of each other. What is later than this against the fastest one would be left out. */
    private static final Duration GRACE = Duration.ofMinutes(10);

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Event(
            @JsonProperty("event_time_ms") long timeMs,
            @JsonProperty("user") String user,
            @JsonProperty("client_id") String clientId,
            @JsonProperty("produced_bytes") long producedBytes,
            @JsonProperty("fetched_bytes") long fetchedBytes,
            @JsonProperty("io_time_ns") long ioTimeNs,
            @JsonProperty("network_time_ns") long networkTimeNs,
            @JsonProperty("request_count") long requestCount) {
        String key() {
            return user + '/' + clientId;
        }

        Sums sums() {
            return new Sums(producedBytes, fetchedBytes, ioTimeNs, networkTimeNs, requestCount);
        }
    }

    record Sums(long producedBytes, long fetchedBytes, long ioTimeNs, long networkTimeNs, long requestCount) {
        static final Sums NONE = new Sums(0, 0, 0, 0, 0);

        Sums plus(Sums other) {
            return new Sums(
                    producedBytes + other.producedBytes,
                    fetchedBytes + other.fetchedBytes,
                    ioTimeNs + other.ioTimeNs,
                    networkTimeNs + other.networkTimeNs,
                    requestCount + other.requestCount);
        }
    }

    record Result(
            @JsonProperty("second_ms") long secondMs,
            @JsonProperty("key") String key,
            @JsonProperty("produced_bytes") long producedBytes,
            @JsonProperty("fetched_bytes") long fetchedBytes,
            @JsonProperty("io_time_ns") long ioTimeNs,
            @JsonProperty("network_time_ns") long networkTimeNs,
            @JsonProperty("request_count") long requestCount) {}

    public static void main(String[] arguments) throws InterruptedException {
        String input = arguments[1];
        String output = arguments[2];
        StreamsBuilder builder = new StreamsBuilder();
        Serde<Sums> packed = serde(StreamsPeer::packed, StreamsPeer::unpacked);
        KStream<String, Sums> usage = arguments[3].equals("object") ? objects(builder, input) : arrays(builder, input);
        usage.groupByKey(Grouped.with(Serdes.String(), packed))
                .windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, GRACE))
                .aggregate(
                        () -> Sums.NONE,
                        (key, more, sums) -> sums.plus(more),
                        Materialized.<String, Sums, WindowStore<Bytes, byte[]>>as("sums")
                                .withKeySerde(Serdes.String())
                                .withValueSerde(packed))
                .toStream()
                .map((window, sums) -> KeyValue.pair(
                        window.key(),
                        new Result(
                                window.window().start(),
                                window.key(),
                                sums.producedBytes,
                                sums.fetchedBytes,
                                sums.ioTimeNs,
                                sums.networkTimeNs,
                                sums.requestCount)))
                .to(output, Produced.with(Serdes.String(), json(Result.class)));
        run(builder, properties(arguments));
    }

    private static KStream<String, Sums> objects(StreamsBuilder builder, String input) {
        TimestampExtractor byEvent = (ConsumerRecord<Object, Object> message, long before) ->
                ((Event) message.value()).timeMs();
        return builder.stream(input, Consumed.with(Serdes.String(), json(Event.class)).withTimestampExtractor(byEvent))
                .mapValues(Event::sums);
    }

    private static KStream<String, Sums> arrays(StreamsBuilder builder, String input) {
        return builder.stream(input, Consumed.with(Serdes.ByteArray(), json(Event[].class)))
                .process(Splitter::new);
    }

    /** Gives each event of an array its own key and time. */
    private static final class Splitter implements Processor<byte[], Event[], String, Sums> {
        private ProcessorContext<String, Sums> context;

        @Override
        public void init(ProcessorContext<String, Sums> given) {
            context = given;
        }

        @Override
        public void process(Record<byte[], Event[]> message) {
            for (Event event : message.value()) {
                context.forward(new Record<>(event.key(), event.sums(), event.timeMs()));
            }
        }
    }

    private static Properties properties(String[] arguments) {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[5]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        properties.put("auto.offset.reset", "earliest");
        // A static member: after a kill the same one comes back, and nobody waits for the old session to end.
        properties.put("group.instance.id", arguments[5]);
        return properties;
    }

    private static void run(StreamsBuilder builder, Properties properties) throws InterruptedException {
        CountDownLatch ended = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                System.out.println("READY");
            }
            if (now == KafkaStreams.State.ERROR) {
                ended.countDown();
            }
        });
        // After a kill, 4.3 often fails to open its own stores ("Store sums… is currently closed"), and ends by default.
        streams.setUncaughtExceptionHandler(error -> StreamThreadExceptionResponse.REPLACE_THREAD);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(5))));
        streams.start();
        ended.await();
        System.exit(1);
    }

    private interface Reading<T> {
        T read(byte[] bytes) throws IOException;
    }

    private interface Writing<T> {
        byte[] write(T value) throws IOException;
    }

    private static <T> Serde<T> json(Class<T> type) {
        ObjectReader reader = JSON.readerFor(type);
        ObjectWriter writer = JSON.writerFor(type);
        return serde(writer::writeValueAsBytes, reader::readValue);
    }

    private static <T> Serde<T> serde(Writing<T> writing, Reading<T> reading) {
        Serializer<T> serializer = (topic, value) -> {
            try {
                return value == null ? null : writing.write(value);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        };
        Deserializer<T> deserializer = (topic, bytes) -> {
            try {
                return bytes == null ? null : reading.read(bytes);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        };
        return Serdes.serdeFrom(serializer, deserializer);
    }

    private static byte[] packed(Sums sums) {
        return ByteBuffer.allocate(5 * Long.BYTES)
                .putLong(sums.producedBytes)
                .putLong(sums.fetchedBytes)
                .putLong(sums.ioTimeNs)
                .putLong(sums.networkTimeNs)
                .putLong(sums.requestCount)
                .array();
    }

    private static Sums unpacked(byte[] bytes) {
        ByteBuffer from = ByteBuffer.wrap(bytes);
        return new Sums(from.getLong(), from.getLong(), from.getLong(), from.getLong(), from.getLong());
    }
}
