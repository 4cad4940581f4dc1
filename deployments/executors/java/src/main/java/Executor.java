import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileOutputStream;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A small executor for a route of oncebus in claim mode, with kafka-clients.
 *
 * <p>It reads events with read_committed, charges a card, and commits outcome and offset in one transaction. While it works it
 * renews each attempt, and it stops when the answers topic says that the attempt is superseded. With EXECUTOR_START=true it
 * asks before each event. Its journal notes each event before the work. A crash may come after the charge and before its
 * result is known: then the gateway knows, by the reference that each charge has. ../README.md has the protocol in ten steps,
 * the settings, and what to do with a system that cannot be asked.
 */
public final class Executor {
  static final String BROKERS = System.getenv("EXECUTOR_BROKERS");
  static final String INPUT = System.getenv("EXECUTOR_INPUT");
  static final String OUTCOMES = System.getenv("EXECUTOR_OUTCOMES");
  static final String ANSWERS = System.getenv().getOrDefault("EXECUTOR_ANSWERS", "");
  static final String GROUP = System.getenv("EXECUTOR_GROUP");
  /** Different for each process, and the same after a restart. */
  static final String INSTANCE = System.getenv("EXECUTOR_INSTANCE");
  static final long RENEW_MS = Long.parseLong(System.getenv("EXECUTOR_RENEW_MS"));
  static final boolean START = "true".equals(System.getenv("EXECUTOR_START"));
  static final String JOURNAL = System.getenv().getOrDefault("EXECUTOR_JOURNAL", "");
  static final boolean CLAIMED_ONLY = "true".equals(System.getenv("EXECUTOR_CLAIMED_ONLY"));
  static final String GATEWAY = System.getenv().getOrDefault("EXECUTOR_GATEWAY", "").replaceAll("/+$", "");
  /** The gateway knows no idempotency keys. */
  static final boolean GATEWAY_ASK = "true".equals(System.getenv("EXECUTOR_GATEWAY_ASK"));

  /** Most events of one transaction. */
  static final int EVENTS_MAX = 50;
  /** When a start without an answer is asked for again: an answer may be lost. */
  static final long ASK_AGAIN_MS = 5000;
  /** How long a stop waits for work. */
  static final long STOP_MS = 20_000;
  /** A request to the gateway without an answer takes effect within this time, or never. */
  static final long GATEWAY_LIMIT_MS = Long.parseLong(System.getenv().getOrDefault("EXECUTOR_GATEWAY_LIMIT_MS", "60000"));
  /** Between two requests to the gateway. */
  static final long GATEWAY_PAUSE_MS = 2000;

  static final ObjectMapper JSON = new ObjectMapper();
  /** On each question: an answer without it is to a question of an earlier start. */
  static final byte[] RUN = UUID.randomUUID().toString().getBytes(StandardCharsets.UTF_8);
  static volatile boolean stopping;
  /** The start id: that of the journal. */
  static String startId = INSTANCE;

  record Outcome(String kind, byte[] value) {}

  /** Refuses an event permanently. After any other error it may be tried again. */
  static final class Rejected extends Exception {
    Rejected(String why) {
      super("rejected: " + why);
    }
  }

  /** The process stops before the outcome of an event is known. */
  static final class Stopped extends Exception {}

  /** An event in process. over is counted down when the attempt is superseded, answered with the answer to start. */
  static final class Held {
    final byte[] key;
    final CountDownLatch over = new CountDownLatch(1);
    final CountDownLatch answered = new CountDownLatch(1);
    volatile boolean asking;

    Held(byte[] key) {
      this.key = key;
    }

    boolean superseded() {
      return over.getCount() == 0;
    }
  }

  /**
   * Charges the amount of the event: this is what the executor does. It returns null if it did not end, because the attempt is
   * superseded or the process stops. again says that an earlier run was cut off, and may have charged.
   */
  static byte[] work(byte[] value, String reference, boolean again, Held held) throws Rejected, InterruptedException {
    JsonNode request;
    try {
      request = JSON.readTree(value);
    } catch (IOException e) {
      throw new Rejected("no JSON object");
    }
    if (!request.path("account").isTextual() || !request.path("amount").isInt()) {
      throw new Rejected("no account or no amount");
    }
    int amount = request.get("amount").asInt();
    if (amount > 1000) {
      throw new Rejected(amount + " is more than 1000");
    }
    if (held.over.await(request.path("work_ms").asLong(), TimeUnit.MILLISECONDS)) {
      return null;
    }
    String account = request.get("account").asText();
    String charge = JSON.createObjectNode().put("reference", reference).put("account", account).put("amount", amount).toString();
    if (!GATEWAY.isEmpty() && !charge(reference, charge, again, held)) {
      return null;
    }
    return JSON.createObjectNode().put("account", account).put("granted", amount).toString().getBytes(StandardCharsets.UTF_8);
  }

  static final HttpClient HTTP = HttpClient.newHttpClient();

  /**
   * Charges once, and returns whether it did. The gateway answers a request whose Idempotency-Key it has seen as it did before.
   * One without such keys is asked first for a charge with the reference: an earlier request may have had its effect, although
   * its answer was lost.
   */
  static boolean charge(String reference, String charge, boolean unsure, Held held) throws Rejected, InterruptedException {
    HttpRequest ask = HttpRequest.newBuilder(URI.create(GATEWAY + "/charges?reference=" + URLEncoder.encode(reference, StandardCharsets.UTF_8)))
        .timeout(Duration.ofSeconds(30)).build();
    HttpRequest post = HttpRequest.newBuilder(URI.create(GATEWAY + "/charges")).timeout(Duration.ofSeconds(30))
        .header("Content-Type", "application/json").header("Idempotency-Key", reference)
        .POST(HttpRequest.BodyPublishers.ofString(charge)).build();
    long pause = GATEWAY_ASK ? GATEWAY_LIMIT_MS : GATEWAY_PAUSE_MS;
    while (!held.over.await(unsure ? pause : 0, TimeUnit.MILLISECONDS) && !(unsure && stopping)) {
      unsure = true;
      try {
        if (GATEWAY_ASK && send(ask, 404, Set.of())) {
          return true;
        }
        if (held.superseded()) {
          return false;
        }
        return send(post, 0, Set.of(400, 402, 422));
      } catch (IOException e) { // nothing says whether it charged
        System.err.println("no answer of the gateway, asking again: " + e);
      }
    }
    return false;
  }

  /**
   * Sends a request to the gateway. It returns false for the status missing. Other statuses than these say nothing of the
   * charge: wrong credentials, for example. The client follows no redirect: a POST would become a GET.
   */
  static boolean send(HttpRequest request, int missing, Set<Integer> refused) throws Rejected, IOException, InterruptedException {
    int status = HTTP.send(request, HttpResponse.BodyHandlers.discarding()).statusCode();
    if (status < 300 || status == missing) {
      return status != missing;
    }
    if (refused.contains(status)) {
      throw new Rejected("the gateway answers " + status);
    }
    throw new IOException("the gateway answers " + status);
  }

  public static void main(String[] args) throws Exception {
    Thread main = Thread.currentThread();
    Thread.setDefaultUncaughtExceptionHandler((thread, e) -> {
      e.printStackTrace();
      Runtime.getRuntime().halt(1); // a restart goes on
    });
    Executor executor = new Executor();
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Map.of(
            "bootstrap.servers", BROKERS, "transactional.id", INSTANCE), new ByteArraySerializer(), new ByteArraySerializer());
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(Map.of(
            "bootstrap.servers", BROKERS, "group.id", GROUP, "enable.auto.commit", false, "auto.offset.reset", "earliest",
            "isolation.level", "read_committed", "session.timeout.ms", 6000, "heartbeat.interval.ms", 1000,
            "max.poll.records", EVENTS_MAX), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      Runtime.getRuntime().addShutdownHook(new Thread(() -> {
        stopping = true;
        consumer.wakeup();
        try {
          main.join(STOP_MS);
        } catch (InterruptedException e) {
          Thread.currentThread().interrupt();
        }
      }));
      producer.initTransactions(); // aborts what the process before left open
      consumer.subscribe(List.of(INPUT));
      executor.run(producer, consumer);
    } catch (WakeupException e) {
      // stopped
    }
  }

  final Map<String, Held> held = new ConcurrentHashMap<>();
  final Map<String, Outcome> journal = new HashMap<>();
  /** The events whose work has begun, by the journal. */
  final Set<String> begun = new HashSet<>();
  /** The outcomes of events whose transaction has not committed: they are sent again without the work. */
  final Map<String, Outcome> done = new HashMap<>();
  /** Of the questions: one in the open transaction would not be read. */
  final KafkaProducer<byte[], byte[]> asker = new KafkaProducer<>(
      Map.of("bootstrap.servers", BROKERS), new ByteArraySerializer(), new ByteArraySerializer());
  final FileOutputStream file;
  FileLock lock;

  Executor() throws IOException {
    if (START && JOURNAL.isEmpty() && (GATEWAY.isEmpty() || GATEWAY_ASK)) {
      throw new IOException("set EXECUTOR_JOURNAL: without it nothing says after a crash that work has begun, and a start is granted again");
    }
    file = JOURNAL.isEmpty() ? null : openJournal();
    for (Runnable runnable : List.<Runnable>of(this::readAnswers, this::renew)) {
      Thread thread = new Thread(runnable);
      thread.setDaemon(true);
      thread.start();
    }
  }

  void run(KafkaProducer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer) throws Exception {
    while (!stopping) {
      List<ConsumerRecord<byte[], byte[]>> events = new ArrayList<>();
      consumer.poll(Duration.ofSeconds(1)).forEach(events::add);
      if (events.isEmpty()) {
        continue; // idle: no transaction is open
      }
      for (ConsumerRecord<byte[], byte[]> event : events) {
        if (!token(event).isEmpty()) {
          held.put(token(event), new Held(event.key()));
        }
      }
      List<ProducerRecord<byte[], byte[]>> outcomes = new ArrayList<>();
      Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
      for (ConsumerRecord<byte[], byte[]> event : events) {
        Outcome outcome;
        try {
          outcome = execute(event);
        } catch (Stopped e) {
          break; // what is finished is sent, and another process gets the others
        }
        if (outcome != null && !token(event).isEmpty()) {
          outcomes.add(record(event.key(), token(event), outcome.kind(), outcome.value()));
        } else if (outcome != null && !header(event, "oncebus-reply-to").isEmpty()) { // no claim, and a request waits
          ProducerRecord<byte[], byte[]> reply = record(event.key(), "", outcome.kind(), outcome.value());
          reply.headers().remove("oncebus-claim-token").remove("oncebus-start-id");
          reply.headers().add("oncebus-reply-to", header(event, "oncebus-reply-to").getBytes(StandardCharsets.UTF_8));
          outcomes.add(reply);
        }
        offsets.put(new TopicPartition(event.topic(), event.partition()), new OffsetAndMetadata(event.offset() + 1));
      }
      if (offsets.isEmpty()) {
        return;
      }
      try {
        producer.beginTransaction();
        outcomes.forEach(producer::send);
        // The metadata has the generation of the group, so the broker refuses the transaction of a process that lost the partition.
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
        done.clear();
      } catch (ProducerFencedException | InvalidProducerEpochException e) {
        throw e; // another process has this instance's name
      } catch (KafkaException e) {
        System.err.println("transaction aborted: " + e);
        producer.abortTransaction();
        rewind(consumer);
      } finally {
        held.clear();
      }
    }
  }

  /** Reads again from the committed offsets. */
  static void rewind(KafkaConsumer<byte[], byte[]> consumer) {
    consumer.committed(consumer.assignment()).forEach((partition, committed) -> {
      if (committed == null) {
        consumer.seekToBeginning(List.of(partition));
      } else {
        consumer.seek(partition, committed.offset());
      }
    });
  }

  /** Returns the outcome of an event; null for none. An event without a claim is executed, and has no outcome to record. */
  Outcome execute(ConsumerRecord<byte[], byte[]> event) throws Exception {
    if (stopping) {
      throw new Stopped();
    }
    String token = token(event);
    if (token.isEmpty() && CLAIMED_ONLY) {
      System.err.println("event without a claim, skipped: " + header(event, "oncebus-verdict"));
      return null;
    }
    // All attempts of a key have one reference, so that the other system finds an earlier one.
    String key = header(event, "oncebus-key");
    String reference = key.isEmpty() ? event.topic() + "/" + event.partition() + "/" + event.offset() : key;
    String name = token.isEmpty() ? reference : token;
    if (done.containsKey(name)) {
      return done.get(name);
    }
    Held attempt = token.isEmpty() ? new Held(event.key()) : held.get(token);
    if (!token.isEmpty() && START && !start(token, attempt)) {
      if (stopping) {
        throw new Stopped();
      }
      System.err.println("attempt superseded, skipped: " + token);
      return null;
    }
    Outcome outcome = journal.get(name);
    if (outcome == null) {
      // An earlier attempt may have a request on its way, too.
      boolean again = begin(name) || GATEWAY_ASK && !Set.of("", "1").contains(header(event, "oncebus-attempt"));
      outcome = outcomeOf(event.value(), reference, again, attempt);
      if (attempt.superseded()) {
        System.err.println("attempt superseded: " + name);
        return null;
      }
      if (outcome == null) {
        throw new Stopped();
      }
      writeJournal(name + " " + outcome.kind() + " " + Base64.getEncoder().encodeToString(outcome.value()));
      journal.put(name, outcome);
    }
    done.put(name, outcome);
    return outcome;
  }

  /** Does the work. It returns null if it was cut off. */
  static Outcome outcomeOf(byte[] value, String reference, boolean again, Held attempt) throws InterruptedException {
    if (again && GATEWAY.isEmpty()) {
      // Fill in here how the other system is asked. Work that runs again may have its effect twice.
      // After submitted the claim stays until somebody writes another outcome. rejected would free the key.
      System.err.println("not run again, because a crash cut it off: " + reference);
      return outcome("submitted", "a crash cut the work off, and nothing says whether it had its effect: look, and write the outcome");
    }
    try {
      byte[] result = work(value, reference, again, attempt);
      if (result == null && (attempt.superseded() || stopping)) {
        return null;
      }
      return new Outcome("completed", result == null ? new byte[0] : result);
    } catch (Rejected e) {
      return outcome("rejected", e.getMessage());
    } catch (RuntimeException e) { // the event may be tried again, by the next attempt
      return outcome("failed", String.valueOf(e.getMessage()));
    }
  }

  static Outcome outcome(String kind, String text) {
    return new Outcome(kind, text.getBytes(StandardCharsets.UTF_8));
  }

  /**
   * Asks until there is an answer, and returns whether the start is granted. The same start id gets the answer again. After a stop
   * it asks once more, because no other process gets an event that was granted to this one.
   */
  boolean start(String token, Held attempt) throws InterruptedException {
    attempt.asking = true;
    boolean last;
    do {
      last = stopping;
      ask(token, attempt, "start");
    } while (!attempt.answered.await(ASK_AGAIN_MS, TimeUnit.MILLISECONDS) && !last);
    attempt.asking = false;
    return attempt.answered.getCount() == 0 && !attempt.superseded();
  }

  /** Sends a question. One that was not sent is asked again. */
  void ask(String token, Held attempt, String kind) {
    ProducerRecord<byte[], byte[]> question = record(attempt.key, token, kind, null);
    question.headers().add("executor-run", RUN);
    asker.send(question, (metadata, e) -> {
      if (e != null) {
        System.err.println("question not sent, retrying: " + e);
      }
    });
  }

  /** Asks for every event in process, also for those that wait for another one, and after a stop, which waits for the work. */
  void renew() {
    while (true) {
      held.forEach((token, attempt) -> {
        if (!attempt.asking && !attempt.superseded()) {
          ask(token, attempt, "renew");
        }
      });
      try {
        Thread.sleep(RENEW_MS);
      } catch (InterruptedException e) {
        return;
      }
    }
  }

  /** Takes the answers. The answer superseded may come without a question. */
  void readAnswers() {
    if (ANSWERS.isEmpty()) {
      return;
    }
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(Map.of(
        "bootstrap.servers", BROKERS, "enable.auto.commit", false, "auto.offset.reset", "earliest", "isolation.level", "read_committed"),
        new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      Map<TopicPartition, Long> since = new HashMap<>();
      consumer.partitionsFor(ANSWERS).forEach(p -> since.put(new TopicPartition(ANSWERS, p.partition()), System.currentTimeMillis() - 60_000));
      consumer.assign(since.keySet());
      consumer.offsetsForTimes(since).forEach((partition, at) -> {
        if (at == null) {
          consumer.seekToEnd(List.of(partition));
          consumer.position(partition);
        } else {
          consumer.seek(partition, at.offset());
        }
      });
      while (true) {
        consumer.poll(Duration.ofSeconds(1)).forEach(this::takeAnswer);
      }
    }
  }

  void takeAnswer(ConsumerRecord<byte[], byte[]> answer) {
    String id = header(answer, "oncebus-start-id");
    Held attempt = held.get(token(answer));
    if (attempt == null || !id.isEmpty() && !(id.equals(startId) && header(answer, "executor-run").equals(new String(RUN, StandardCharsets.UTF_8)))) {
      return; // to another executor, to an earlier start of this one, or of an earlier event
    }
    boolean granted = "granted".equals(header(answer, "oncebus-answer"));
    if (!granted) {
      attempt.over.countDown();
    }
    if (!granted || "start".equals(header(answer, "oncebus-outcome"))) {
      attempt.answered.countDown();
    }
  }

  /** Of the response by HTTP, with the text of the outcome. Without a status an error is a problem of oncebus with the text in it. */
  static final Map<String, String> STATUSES = Map.of("rejected", "422", "failed", "502");

  /** A question or an outcome. All of an event have its record key, so that oncebus reads them in their order. */
  static ProducerRecord<byte[], byte[]> record(byte[] key, String token, String kind, byte[] value) {
    ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(OUTCOMES, key, value);
    record.headers().add("oncebus-claim-token", token.getBytes(StandardCharsets.UTF_8)).add("oncebus-outcome", kind.getBytes(StandardCharsets.UTF_8))
        .add("oncebus-start-id", startId.getBytes(StandardCharsets.UTF_8));
    String status = STATUSES.get(kind);
    if (status != null) {
      record.headers().add("http-status", status.getBytes(StandardCharsets.UTF_8)).add("content-type", "text/plain; charset=utf-8".getBytes(StandardCharsets.UTF_8));
    }
    return record;
  }

  static String token(ConsumerRecord<byte[], byte[]> record) {
    return header(record, "oncebus-claim-token");
  }

  static String header(ConsumerRecord<byte[], byte[]> record, String name) {
    Header header = record.headers().lastHeader(name);
    return header == null || header.value() == null ? "" : new String(header.value(), StandardCharsets.UTF_8);
  }

  /**
   * Reads the journal: a file with two lines for each event, one before its work, and one with its outcome. Both are on the disk
   * before the executor goes on. After a crash the first line alone says that the work may have had its effect. The first line of
   * the file is the start id of the executor: with another journal, or without this one, no start is granted again. The lock is a
   * file of its own, because Java may release it when another stream of a file is closed.
   */
  FileOutputStream openJournal() throws IOException {
    Path path = Path.of(JOURNAL);
    lock = new FileOutputStream(JOURNAL + ".lock").getChannel().tryLock();
    if (lock == null) {
      throw new IOException("journal " + JOURNAL + ": another process has it; give each process a journal of its own");
    }
    boolean drawn = true;
    if (Files.exists(path)) {
      for (String line : Files.readAllLines(path)) {
        String[] fields = line.split(" ", -1);
        if (!fields[fields.length - 1].equals(".")) {
          continue; // a crash cut it short: what it announces was not done
        }
        if (fields[0].equals("id")) {
          startId = fields[1];
          drawn = false;
          continue;
        }
        begun.add(fields[0]);
        if (fields.length == 4) {
          journal.put(fields[0], new Outcome(fields[1], Base64.getDecoder().decode(fields[2])));
        }
      }
    }
    FileOutputStream file = new FileOutputStream(JOURNAL, true);
    file.write('\n');
    if (drawn) {
      startId = INSTANCE + "-" + UUID.randomUUID();
      write(file, "id " + startId);
    }
    return file;
  }

  /** Notes that the work on an event begins, and returns whether it had begun before. */
  boolean begin(String event) throws IOException {
    boolean first = begun.add(event);
    if (first) {
      writeJournal(event);
    }
    return !first;
  }

  void writeJournal(String line) throws IOException {
    if (file != null) {
      write(file, line);
    }
  }

  static void write(FileOutputStream file, String line) throws IOException {
    file.write((line + " .\n").getBytes(StandardCharsets.UTF_8));
    file.getFD().sync();
  }
}
