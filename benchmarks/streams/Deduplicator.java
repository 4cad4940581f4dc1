import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/**
 * A deduplicator on Kafka Streams, in the two ways its users write it: with the time of the first sighting in a persistent
 * key-value store, or with a row in a persistent window store. An event whose key was seen within the window, before it or after
 * it in event time, is a copy and is dropped; the others go to the output. State is in RocksDB and in a changelog topic; with
 * exactly_once_v2 the input offsets, the output and the changelog are one transaction.
 *
 * <p>For throughput and faults the dedup key is the record key, by which the input is partitioned: no repartition topic, no JSON to
 * parse, and keys and values stay bytes. That is less work than oncebus does, which takes the key from the payload. With
 * {@code KEY=payload} this program does so too: it selects the key, and a repartition topic brings the events of a key together.
 * Event time is the record's timestamp, which the repartition topic keeps.
 */
public final class Deduplicator {
    private static final String STORE = "seen";
    private static final ObjectMapper JSON = new ObjectMapper();

    private Deduplicator() {}

    public static void main(String[] args) throws InterruptedException {
        KafkaStreams streams = new KafkaStreams(topology(), settings());
        CountDownLatch failed = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(e -> {
            e.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        // SIGTERM and System.exit run this. The exit code is given here, because after SIGTERM the JVM's own would be 143.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            boolean closed = streams.close(Duration.ofSeconds(20));
            Runtime.getRuntime().halt(closed && failed.getCount() > 0 ? 0 : 1);
        }));
        streams.start();
        failed.await();
        System.exit(1);
    }

    private static Topology topology() {
        Duration window = Duration.ofMillis(Long.parseLong(setting("WINDOW_MS")));
        StreamsBuilder builder = new StreamsBuilder();
        StoreBuilder<?> store;
        FixedKeyProcessorSupplier<Bytes, byte[], byte[]> processor;
        switch (setting("STORE")) {
            case "key-value" -> {
                store = ByTime.store();
                processor = () -> new ByTime(window);
            }
            case "window" -> {
                store = ByWindow.store(window, Duration.ofMillis(Long.parseLong(setting("GRACE_MS"))));
                processor = () -> new ByWindow(window);
            }
            default -> throw new IllegalArgumentException("STORE is " + setting("STORE") + ", need key-value or window");
        }
        builder.addStateStore(store);
        KStream<Bytes, byte[]> events = builder.stream(setting("INPUT"), Consumed.with(Serdes.Bytes(), Serdes.ByteArray()));
        if (setting("KEY").equals("payload")) {
            events = events.selectKey((key, value) -> traceId(value))
                .repartition(Repartitioned.with(Serdes.Bytes(), Serdes.ByteArray()));
        }
        events
            .processValues(processor, STORE)
            .to(setting("OUTPUT"), Produced.with(Serdes.Bytes(), Serdes.ByteArray()));
        return builder.build();
    }

    private static Bytes traceId(byte[] value) {
        try {
            return Bytes.wrap(JSON.readTree(value).path("traceId").textValue().getBytes(StandardCharsets.UTF_8));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /**
     * What differs from the defaults of Kafka Streams and its clients, and why. RocksDB keeps what Streams sets: a block cache of
     * 50 MB and three write buffers of 16 MB for each store, Bloom filters, no compression. The changelog is on by default, and
     * the record cache off, as it is for a processor: hardly any key comes twice within a commit interval, so it saves nothing,
     * and with it an event costs 15.9 us of CPU in place of 12.1 (key-value; window 15.7, 12.1).
     */
    private static Properties settings() {
        Properties p = new Properties();
        p.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, setting("BROKERS"));
        p.put(StreamsConfig.APPLICATION_ID_CONFIG, setting("APPLICATION_ID"));
        p.put(StreamsConfig.STATE_DIR_CONFIG, setting("STATE_DIR"));
        p.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, setting("THREADS"));
        p.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1); // there is one broker
        p.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        p.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, setting("COMMIT_MS"));
        // As long as the other contenders' transactions; Streams' own is 10 s.
        p.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 15_000);
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        // As the other contenders: a member that starts again within the session timeout keeps its partitions. Streams' own
        // timeout is 45 s, and its members are dynamic.
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG), setting("INSTANCE"));
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), setting("SESSION_MS"));
        // Polls as large as the other contenders', and room to buffer two of them: at the default of 1,000 records Streams
        // would pause a partition after every poll.
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 4 << 20);
        p.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 20_000);
        // Batches of up to 1 MB, compressed by Snappy, as the Go client of the other contenders makes them; the defaults are
        // 16 KiB, with which an event cost the broker 10.2 us of CPU in place of 8.1, and no compression. linger.ms stays at the
        // 100 ms that Streams sets: a commit flushes and does not wait for it.
        p.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 1_000_000);
        p.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "snappy");
        p.put(StreamsConfig.producerPrefix(ProducerConfig.BUFFER_MEMORY_CONFIG), 128L << 20);
        return p;
    }

    private static String setting(String name) {
        String value = System.getenv("ONCEBUS_STREAMS_" + name);
        if (value == null) {
            throw new IllegalArgumentException("ONCEBUS_STREAMS_" + name + " is not set: Go package streams starts this program");
        }
        return value;
    }

    /** Keeps the event time of the first sighting. A copy does not prolong the window. */
    private static final class ByTime implements FixedKeyProcessor<Bytes, byte[], byte[]> {
        /** How often, in event time, the whole store is read to delete what is older than the window. */
        private static final Duration SWEEP = Duration.ofHours(1);

        private final long windowMs;
        private FixedKeyProcessorContext<Bytes, byte[]> context;
        private KeyValueStore<Bytes, Long> seen;

        ByTime(Duration window) {
            windowMs = window.toMillis();
        }

        static StoreBuilder<?> store() {
            return Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), Serdes.Bytes(), Serdes.Long());
        }

        @Override
        public void init(FixedKeyProcessorContext<Bytes, byte[]> context) {
            this.context = context;
            seen = context.getStateStore(STORE);
            context.schedule(SWEEP, PunctuationType.STREAM_TIME, this::sweep);
        }

        @Override
        public void process(FixedKeyRecord<Bytes, byte[]> event) {
            Long first = seen.get(event.key());
            if (first != null && Math.abs(event.timestamp() - first) <= windowMs) {
                return;
            }
            seen.put(event.key(), event.timestamp());
            context.forward(event);
        }

        private void sweep(long streamTime) {
            try (KeyValueIterator<Bytes, Long> all = seen.all()) {
                while (all.hasNext()) {
                    KeyValue<Bytes, Long> row = all.next();
                    if (row.value < streamTime - windowMs) {
                        seen.delete(row.key);
                    }
                }
            }
        }
    }

    /** Keeps a row for each first sighting in segments by time, which Streams drops whole once they are past the retention. */
    private static final class ByWindow implements FixedKeyProcessor<Bytes, byte[], byte[]> {
        private static final byte[] SEEN = {1};

        private final long windowMs;
        private FixedKeyProcessorContext<Bytes, byte[]> context;
        private WindowStore<Bytes, byte[]> seen;

        ByWindow(Duration window) {
            windowMs = window.toMillis();
        }

        /** Its rows are kept longer than the window by the grace, for events that are late. */
        static StoreBuilder<?> store(Duration window, Duration grace) {
            return Stores.windowStoreBuilder(
                Stores.persistentWindowStore(STORE, window.plus(grace), window, false), Serdes.Bytes(), Serdes.ByteArray());
        }

        @Override
        public void init(FixedKeyProcessorContext<Bytes, byte[]> context) {
            this.context = context;
            seen = context.getStateStore(STORE);
        }

        @Override
        public void process(FixedKeyRecord<Bytes, byte[]> event) {
            long time = event.timestamp();
            try (WindowStoreIterator<byte[]> rows = seen.fetch(event.key(), time - windowMs, time + windowMs)) {
                if (rows.hasNext()) {
                    return;
                }
            }
            seen.put(event.key(), SEEN, time);
            context.forward(event);
        }
    }
}
