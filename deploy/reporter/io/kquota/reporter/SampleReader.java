package io.kquota.reporter;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Field;
import java.util.List;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.SampledStat;

/**
 * Reads what was recorded into a sensor since the last look, of the sample windows that the sensor keeps.
 *
 * Windows are a ring. Records go into the current one only, and one record moves it on by one at most. A window that
 * is left keeps its sum until it is reused, after {@code samples + 1} windows, or purged by a reader of the rate, after
 * {@code samples} windows without a record. So nothing is missed by looks that are closer than that. Starts of windows
 * are not in order where the broker's clock was set back.
 *
 * The fields are not public. If Kafka's classes look different, this class does not load, or a read throws.
 */
final class SampleReader {
    private static final MethodHandle LOCK = getter(KafkaMetric.class, "lock", Object.class);
    private static final MethodHandle STAT = getter(Rate.class, "stat", Object.class);
    private static final MethodHandle SAMPLES = getter(SampledStat.class, "samples", Object.class);
    private static final MethodHandle CURRENT = getter(SampledStat.class, "current", int.class);
    private static final Class<?> SAMPLE = nestedClass(SampledStat.class, "Sample");
    private static final MethodHandle START_MS =
            getter(SAMPLE, has(SAMPLE, "startTimeMs") ? "startTimeMs" : "lastWindowMs", long.class); // in Kafka 3.7
    private static final MethodHandle VALUE = getter(SAMPLE, "value", double.class);
    private static final MethodHandle COUNT = getter(SAMPLE, "eventCount", long.class);

    /** Where the last look at a sensor ended. Before the first one, all that the sensor holds is new. */
    static class Place {
        private SampledStat stat;
        private Object sample;
        private int current = -1;
        private long startMs;
        private double value;
        private long count;
    }

    /** The sum of what was recorded since the last look; may be negative, because a broker takes back fetches. */
    double value;
    /** How many records that were. */
    long count;

    private SampleReader() {}

    /** Throws if Kafka's classes are not as this class knows them. */
    static SampleReader open() throws Throwable {
        return new SampleReader();
    }

    /**
     * Whether a read may find something. Without the sensor's lock, because most sensors have nothing new: what is
     * recorded meanwhile may be seen by the next call only.
     */
    boolean mayHaveMore(Place place) throws Throwable {
        if (place.stat == null) return true;
        if (place.sample == null) return !((List<?>) (Object) SAMPLES.invokeExact((Object) place.stat)).isEmpty();
        return (int) CURRENT.invokeExact((Object) place.stat) != place.current
                || (long) COUNT.invokeExact(place.sample) != place.count
                || (long) START_MS.invokeExact(place.sample) != place.startMs;
    }

    /** Look at a sensor; false if nothing was recorded. Holds the sensor's own lock for less than a microsecond. */
    boolean read(KafkaMetric metric, Place place) throws Throwable {
        if (place.stat == null) {
            Object measurable = metric.measurable();
            place.stat = (SampledStat) (measurable instanceof Rate ? (Object) STAT.invokeExact(measurable) : measurable);
        }
        value = 0;
        count = 0;
        synchronized ((Object) LOCK.invokeExact((Object) metric)) {
            List<?> samples = (List<?>) (Object) SAMPLES.invokeExact((Object) place.stat);
            if (samples.isEmpty()) return false;
            int current = (int) CURRENT.invokeExact((Object) place.stat);
            Object sample = samples.get(current);
            long startMs = (long) START_MS.invokeExact(sample);
            long currentCount = (long) COUNT.invokeExact(sample);
            if (current == place.current && startMs == place.startMs && currentCount == place.count) return false;
            if (place.current >= 0) addRest(samples.get(place.current), place);
            for (int i = place.current; i != current; ) {
                i = (i + 1) % samples.size();
                add(samples.get(i), 0, 0);
            }
            place.sample = sample;
            place.current = current;
            place.startMs = startMs;
            place.value = (double) VALUE.invokeExact(sample);
            place.count = currentCount;
        }
        return count > 0;
    }

    /** What came into the window that was the current one; if it was purged since, all that it holds is new. */
    private void addRest(Object sample, Place place) throws Throwable {
        boolean isSame = (long) START_MS.invokeExact(sample) == place.startMs
                && (long) COUNT.invokeExact(sample) >= place.count;
        if (isSame) add(sample, place.value, place.count);
        else add(sample, 0, 0);
    }

    private void add(Object sample, double formerValue, long formerCount) throws Throwable {
        value += (double) VALUE.invokeExact(sample) - formerValue;
        count += (long) COUNT.invokeExact(sample) - formerCount;
    }

    private static MethodHandle getter(Class<?> owner, String name, Class<?> type) {
        try {
            Field field = owner.getDeclaredField(name);
            field.setAccessible(true);
            return MethodHandles.lookup().unreflectGetter(field).asType(MethodType.methodType(type, Object.class));
        } catch (ReflectiveOperationException | RuntimeException failure) {
            throw new IllegalStateException("field " + owner.getSimpleName() + "." + name + " cannot be read", failure);
        }
    }

    private static boolean has(Class<?> owner, String name) {
        for (Field field : owner.getDeclaredFields()) if (field.getName().equals(name)) return true;
        return false;
    }

    private static Class<?> nestedClass(Class<?> owner, String name) {
        for (Class<?> nested : owner.getDeclaredClasses()) if (nested.getSimpleName().equals(name)) return nested;
        throw new IllegalStateException("class " + owner.getSimpleName() + "." + name + " is missing");
    }
}
