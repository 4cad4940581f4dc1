package org.apache.kafka.common.utils;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.Supplier;

import org.apache.kafka.common.errors.TimeoutException;

/**
 * Kafka's clock, in place of the class of that name in its jars: the wall clock of the machine plus the milliseconds in the file
 * that the property oncebus.clock names. The monotonic clock is the machine's. It has the members that Kafka 3.6 to 4.3 use.
 */
public class SystemTime implements Time {
    private static final SystemTime SYSTEM_TIME = new SystemTime();
    private static final Path FILE = Path.of(System.getProperty("oncebus.clock"));
    private static final long READ_EVERY_NS = 20_000_000;

    private static volatile long step;
    private static volatile long readAt = System.nanoTime() - READ_EVERY_NS;

    public SystemTime() {
    }

    public static SystemTime getSystemTime() {
        return SYSTEM_TIME;
    }

    private static long step() {
        long now = System.nanoTime();
        if (now - readAt >= READ_EVERY_NS) {
            readAt = now;
            try {
                step = Long.parseLong(Files.readString(FILE).trim());
            } catch (IOException | NumberFormatException e) {
                // The file is being replaced: the last step holds.
            }
        }
        return step;
    }

    @Override
    public long milliseconds() {
        return System.currentTimeMillis() + step();
    }

    @Override
    public long nanoseconds() {
        return System.nanoTime();
    }

    @Override
    public void sleep(long ms) {
        Utils.sleep(ms);
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) throws InterruptedException {
        synchronized (object) {
            while (!condition.get()) {
                long left = deadlineMs - milliseconds();
                if (left <= 0) {
                    throw new TimeoutException("Condition not satisfied before deadline");
                }
                object.wait(left);
            }
        }
    }
}
