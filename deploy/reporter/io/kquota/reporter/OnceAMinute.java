package io.kquota.reporter;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** Lets a line that would be written again and again into the log once a minute. */
final class OnceAMinute {
    private static final long REST_NS = TimeUnit.MINUTES.toNanos(1);
    private static final long NEVER = Long.MIN_VALUE;
    private final AtomicLong lastNs = new AtomicLong(NEVER);

    /** Whether it is time for the line; if so, it counts as written. */
    boolean isDue() {
        long nowNs = System.nanoTime(), formerNs = lastNs.get();
        return (formerNs == NEVER || nowNs - formerNs >= REST_NS) && lastNs.compareAndSet(formerNs, nowNs);
    }

    /** The line could not be written. */
    void undo() {
        lastNs.set(NEVER);
    }
}
