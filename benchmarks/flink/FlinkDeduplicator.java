import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Optional;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;
import org.apache.kafka.clients.producer.ProducerConfig;

/**
 * A deduplicator on Flink, in the way of its documents: a keyed function with one value in RocksDB for each key, whose time to live
 * is the window. Source offsets, state and output are one checkpoint, and the Kafka sink commits its transactions after it.
 *
 * <p>Job manager and task manager are threads of one process. It starts from the newest complete checkpoint in its directory, as a
 * job of high availability does after the loss of both.
 *
 * <p>For throughput and faults the dedup key is the record key: no JSON to parse, and values stay bytes. That is less work than
 * oncebus does, which takes the key from the payload. With {@code KEY=payload} this program does so too.
 *
 * <p>The time to live is of the clock of the machine. {@code EXPIRY=watermarks} has windows in event time instead: see
 * {@link FirstInEventTime}. Event time is the record's timestamp, and the source makes a watermark for each partition.
 */
public final class FlinkDeduplicator {
    /** How far event times of a partition may go back, as in the first example of the documents. */
    private static final Duration OUT_OF_ORDER = Duration.ofSeconds(20);

    private static volatile boolean failed;

    private FlinkDeduplicator() {}

    public static void main(String[] args) {
        // SIGTERM ends a local job without a savepoint. The exit code is given here, because the JVM's own would be 143.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Runtime.getRuntime().halt(failed ? 1 : 0)));
        try {
            execute();
        } catch (Exception e) {
            e.printStackTrace();
        }
        failed = true; // the job has no end of its own
        System.exit(1);
    }

    private static void execute() throws Exception {
        int parallelism = Integer.parseInt(setting("PARALLELISM"));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration());
        Duration window = Duration.ofMillis(Long.parseLong(setting("WINDOW_MS")));
        WatermarkStrategy<Tuple2<String, byte[]>> inOrder = WatermarkStrategy.forBoundedOutOfOrderness(OUT_OF_ORDER);
        switch (setting("EXPIRY")) {
            case "time-to-live" -> firsts(env, WatermarkStrategy.noWatermarks(), new FirstOfKey(window));
            case "watermarks" -> late(firsts(env, inOrder, new FirstInEventTime(window)));
            // A partition waits once it is a window ahead of the one that has come least far.
            case "aligned" -> late(firsts(env, inOrder.withWatermarkAlignment("input", window), new FirstInEventTime(window)));
            default -> throw new IllegalArgumentException("an unknown value of EXPIRY");
        }
        env.execute("deduplicator");
    }

    private static SingleOutputStreamOperator<Tuple2<String, byte[]>> firsts(StreamExecutionEnvironment env,
            WatermarkStrategy<Tuple2<String, byte[]>> watermarks,
            KeyedProcessFunction<String, Tuple2<String, byte[]>, Tuple2<String, byte[]>> function) {
        SingleOutputStreamOperator<Tuple2<String, byte[]>> firsts = env.fromSource(source(), watermarks, "input")
            .uid("input")
            .keyBy(event -> event.f0, Types.STRING)
            .process(function)
            .returns(Event.TYPE)
            .uid("first of key");
        firsts.sinkTo(sink(setting("OUTPUT"), setting("GROUP"))).uid("output");
        return firsts;
    }

    /** Writes the late events to a topic of their own. */
    private static void late(SingleOutputStreamOperator<Tuple2<String, byte[]>> firsts) {
        firsts.getSideOutput(FirstInEventTime.LATE).sinkTo(sink(setting("LATE"), setting("GROUP") + "-late")).uid("late");
    }

    /** What differs from the defaults of Flink, and why. */
    private static Configuration configuration() {
        String checkpoints = setting("STATE_DIR") + "/checkpoints";
        Configuration c = new Configuration();
        c.set(StateBackendOptions.STATE_BACKEND, "rocksdb");
        // A checkpoint uploads only the files that are new, as the documents advise for state that is large.
        c.set(CheckpointingOptions.INCREMENTAL_CHECKPOINTS, true);
        c.set(CheckpointingOptions.CHECKPOINTING_CONSISTENCY_MODE, CheckpointingMode.EXACTLY_ONCE);
        c.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(Long.parseLong(setting("CHECKPOINT_MS"))));
        c.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
        c.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + checkpoints);
        c.set(CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION, ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        // A commit of a transaction that fails while the broker is away fails a checkpoint, not the job.
        c.set(CheckpointingOptions.TOLERABLE_FAILURE_NUMBER, 100);
        // The events are not changed after they were passed on, so each operator may have the same object.
        c.set(PipelineOptions.OBJECT_REUSE, true);
        // Memory of RocksDB, which is about what Kafka Streams takes for four partitions.
        c.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(512));
        c.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(128));
        c.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(128));
        newest(new File(checkpoints)).ifPresent(path -> c.set(StateRecoveryOptions.SAVEPOINT_PATH, "file://" + path));
        return c;
    }

    /** Finds the newest complete checkpoint: one has the file _metadata, which is written last. */
    private static Optional<File> newest(File checkpoints) {
        File[] jobs = checkpoints.listFiles(File::isDirectory);
        if (jobs == null) {
            return Optional.empty();
        }
        return Arrays.stream(jobs)
            .flatMap(job -> Arrays.stream(Optional.ofNullable(job.listFiles()).orElse(new File[0])))
            .filter(checkpoint -> new File(checkpoint, "_metadata").exists())
            .max(Comparator.comparingLong(checkpoint -> new File(checkpoint, "_metadata").lastModified()));
    }

    @SuppressWarnings("deprecation") // the connector takes the Kafka client's old name of the strategy
    private static KafkaSource<Tuple2<String, byte[]>> source() {
        return KafkaSource.<Tuple2<String, byte[]>>builder()
            .setBootstrapServers(setting("BROKERS"))
            .setTopics(setting("INPUT"))
            .setGroupId(setting("GROUP"))
            .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
            .setDeserializer(new Event(setting("KEY").equals("payload")))
            // Polls as large as the other contenders'.
            .setProperty(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "10000")
            .setProperty(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG, String.valueOf(4 << 20))
            .setProperty(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed")
            .build();
    }

    private static KafkaSink<Tuple2<String, byte[]>> sink(String topic, String transactions) {
        return KafkaSink.<Tuple2<String, byte[]>>builder()
            .setBootstrapServers(setting("BROKERS"))
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(transactions)
            // Names are used again: with a new name for each checkpoint the broker keeps ten a second for a week.
            .setTransactionNamingStrategy(TransactionNamingStrategy.POOLING)
            .setRecordSerializer(KafkaRecordSerializationSchema.<Tuple2<String, byte[]>>builder()
                .setTopic(topic)
                .setKeySerializationSchema(new KeyOf())
                .setValueSerializationSchema(new ValueOf())
                .build())
            // Longer than a restart: a transaction that times out after its checkpoint is lost data, as the documents warn.
            .setProperty(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, String.valueOf(15 * 60 * 1000))
            // Batches of up to 1 MB, compressed by Snappy, as the Go client of the other contenders makes them.
            .setProperty(ProducerConfig.BATCH_SIZE_CONFIG, "1000000")
            .setProperty(ProducerConfig.COMPRESSION_TYPE_CONFIG, "snappy")
            .setProperty(ProducerConfig.LINGER_MS_CONFIG, "25")
            .setProperty(ProducerConfig.BUFFER_MEMORY_CONFIG, String.valueOf(128L << 20))
            .build();
    }

    private static String setting(String name) {
        String value = System.getenv("ONCEBUS_FLINK_" + name);
        if (value == null) {
            throw new IllegalArgumentException("ONCEBUS_FLINK_" + name + " is not set: Go package flink starts this program");
        }
        return value;
    }

    /** An event is the text of its key and the bytes of its value. */
    private static final class Event implements KafkaRecordDeserializationSchema<Tuple2<String, byte[]>> {
        private static final long serialVersionUID = 1;
        static final TypeInformation<Tuple2<String, byte[]>> TYPE = TypeInformation.of(new TypeHint<Tuple2<String, byte[]>>() {});
        private static final ObjectMapper JSON = new ObjectMapper();

        private final boolean payload;

        Event(boolean payload) {
            this.payload = payload;
        }

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> r, Collector<Tuple2<String, byte[]>> out) throws IOException {
            String key = payload ? JSON.readTree(r.value()).path("traceId").textValue() : new String(r.key(), StandardCharsets.UTF_8);
            out.collect(Tuple2.of(key, r.value()));
        }

        @Override
        public TypeInformation<Tuple2<String, byte[]>> getProducedType() {
            return TYPE;
        }
    }

    /** A class, because Flink finds the types of no lambda. */
    private static final class KeyOf implements SerializationSchema<Tuple2<String, byte[]>> {
        private static final long serialVersionUID = 1;

        @Override
        public byte[] serialize(Tuple2<String, byte[]> event) {
            return event.f0.getBytes(StandardCharsets.UTF_8);
        }
    }

    private static final class ValueOf implements SerializationSchema<Tuple2<String, byte[]>> {
        private static final long serialVersionUID = 1;

        @Override
        public byte[] serialize(Tuple2<String, byte[]> event) {
            return event.f1;
        }
    }

    /** Forwards the first event of a key. A duplicate does not prolong the window. */
    private static final class FirstOfKey extends KeyedProcessFunction<String, Tuple2<String, byte[]>, Tuple2<String, byte[]>> {
        private static final long serialVersionUID = 1;
        private final Duration window;
        private transient ValueState<Boolean> seen;

        FirstOfKey(Duration window) {
            this.window = window;
        }

        @Override
        public void open(OpenContext context) {
            ValueStateDescriptor<Boolean> descriptor = new ValueStateDescriptor<>("seen", Types.BOOLEAN);
            descriptor.enableTimeToLive(StateTtlConfig.newBuilder(window)
                .setUpdateType(StateTtlConfig.UpdateType.OnCreateAndWrite)
                .setStateVisibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
                .cleanupInRocksdbCompactFilter(1000)
                .build());
            seen = getRuntimeContext().getState(descriptor);
        }

        @Override
        public void processElement(Tuple2<String, byte[]> event, Context context, Collector<Tuple2<String, byte[]>> out) throws Exception {
            if (seen.value() == null) {
                seen.update(true);
                out.collect(event);
            }
        }
    }

    /**
     * Forwards the first event of a key, and drops those within the window around it, in event time. The state of a key is the time
     * of its first event, and a timer clears it once the watermark has passed the window, as the documents of the process function
     * do. Flink itself drops nothing here, so what is late is this function's own decision. It is what the documents call late: an
     * event that is not after the watermark. The state of its key may be gone, so it goes to a side output unjudged.
     *
     * <p>The watermark is that of the partition that has come least far: the state of all keys stays until that one has come as far.
     */
    private static final class FirstInEventTime extends KeyedProcessFunction<String, Tuple2<String, byte[]>, Tuple2<String, byte[]>> {
        private static final long serialVersionUID = 1;
        static final OutputTag<Tuple2<String, byte[]>> LATE = new OutputTag<>("late", Event.TYPE);

        private final long windowMs;
        private transient ValueState<Long> first;

        FirstInEventTime(Duration window) {
            windowMs = window.toMillis();
        }

        @Override
        public void open(OpenContext context) {
            first = getRuntimeContext().getState(new ValueStateDescriptor<>("first", Types.LONG));
        }

        @Override
        public void processElement(Tuple2<String, byte[]> event, Context context, Collector<Tuple2<String, byte[]>> out) throws Exception {
            long time = context.timestamp();
            if (time <= context.timerService().currentWatermark()) {
                context.output(LATE, event);
                return;
            }
            Long before = first.value();
            if (before != null && Math.abs(time - before) <= windowMs) {
                return;
            }
            first.update(time);
            context.timerService().registerEventTimeTimer(time + windowMs);
            out.collect(event);
        }

        @Override
        public void onTimer(long end, OnTimerContext context, Collector<Tuple2<String, byte[]>> out) throws Exception {
            Long before = first.value();
            if (before != null && before + windowMs <= end) {
                first.clear();
            }
        }
    }
}
