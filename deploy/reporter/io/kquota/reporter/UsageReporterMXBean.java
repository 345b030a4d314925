package io.kquota.reporter;

/** What the reporter counts, as JMX shows it under {@code kquota:type=reporter}. */
public interface UsageReporterMXBean {
    /** Sensors of the broker that are read. */
    long getSensors();

    /** Clients that have sums; the sum that is shared by clients of a user counts as one. */
    long getClients();

    /** Sensors that have their usage in a sum that is shared by clients of a user: there are too many of them. */
    long getSummedSensors();

    /** Sensors so far that could not be read; their usage is not reported. */
    long getUnreadableSensors();

    /** Usage events so far that may not be stored, and that are not sent again. */
    long getLostEvents();
}
