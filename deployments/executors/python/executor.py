"""A small executor for a route of oncebus in claim mode, with confluent-kafka.

It reads events with read_committed, works, and commits outcome and offset in one transaction. While it
works it renews each attempt, and it stops when the answers topic says that the attempt is superseded.
With EXECUTOR_START=true it asks before each event, and its journal has what it did, so that no event is
executed twice. ../README.md has the protocol in ten steps, and the settings.
"""

import json
import os
import signal
import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

BROKERS = os.environ["EXECUTOR_BROKERS"]
INPUT = os.environ["EXECUTOR_INPUT"]
OUTCOMES = os.environ["EXECUTOR_OUTCOMES"]
ANSWERS = os.environ.get("EXECUTOR_ANSWERS")
GROUP = os.environ["EXECUTOR_GROUP"]
INSTANCE = os.environ["EXECUTOR_INSTANCE"]  # different for each process, and the same after a restart
RENEW_S = int(os.environ["EXECUTOR_RENEW_MS"]) / 1000
START = os.environ.get("EXECUTOR_START") == "true"
JOURNAL = os.environ.get("EXECUTOR_JOURNAL")

EVENTS_MAX = 50  # of one transaction
ASK_AGAIN_S = 5  # an answer may be lost

stopping = threading.Event()


class Rejected(Exception):
    """Refuses an event permanently. After any other error it may be tried again."""


def work(value, superseded):
    """Grants the amount of the event: this is what the executor does. None if it was superseded."""
    try:
        request = json.loads(value)
        account, amount = request["account"], request["amount"]
    except (ValueError, KeyError, TypeError):
        raise Rejected("rejected: no JSON object with account and amount") from None
    if amount > 1000:
        raise Rejected(f"rejected: {amount} is more than 1000")
    if superseded.wait(request.get("work_ms", 0) / 1000):
        return None
    return json.dumps({"account": account, "granted": amount}, separators=(",", ":")).encode()


def header(record, name):
    for key, value in record.headers() or []:
        if key == name and value is not None:
            return value.decode()
    return ""


class Journal:
    """A file with a line for each event that was executed: the effect of this example's work.

    A crash before the commit does not execute such an event again. An executor that calls another
    system asks that system instead.
    """

    def __init__(self, path):
        self.done, self.file = {}, None
        if not path:
            return
        self.file = open(path, "a+", encoding="utf-8")
        self.file.seek(0)
        for text in self.file:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # a crash cut it short: the event was not executed to its end
            self.done[line["token"]] = (line["kind"], bytes.fromhex(line["result"]))
        self.file.write("\n")

    def write(self, token, kind, result):
        if self.file:
            self.file.write(json.dumps({"token": token, "kind": kind, "result": result.hex()}) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())
            self.done[token] = (kind, result)


class Asker:
    """Asks start and renew with a producer of its own, because a question in the open transaction
    would not be read, and reads the answers."""

    def __init__(self):
        self.producer = Producer({"bootstrap.servers": BROKERS, "linger.ms": 0})
        self.lock = threading.Lock()
        self.held = {}  # token: record key, of the events in process
        self.over = {}  # token: an event that is set once the attempt is superseded
        self.answered = {}  # token: an event that is set with the answer to start
        for task in (self.read, self.renew):
            threading.Thread(target=ends_process, args=(task,), daemon=True).start()

    def send(self, kind, token, key):
        # All records of an event have its record key, so that oncebus reads them in their order.
        try:
            self.producer.produce(OUTCOMES, key=key, headers=outcome_headers(token, kind), on_delivery=sent)
        except BufferError as full:
            sent(full, None)
        self.producer.poll(0)

    def read(self):
        """Takes the answers. The answer superseded may come without a question."""
        if not ANSWERS:
            return
        consumer = Consumer({
            "bootstrap.servers": BROKERS, "group.id": GROUP + "-answers-" + INSTANCE, "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "earliest",
        })
        since = int((time.time() - 60) * 1000)
        partitions = consumer.list_topics(ANSWERS, timeout=30).topics[ANSWERS].partitions
        consumer.assign(consumer.offsets_for_times([TopicPartition(ANSWERS, p, since) for p in partitions], timeout=30))
        while not stopping.is_set():
            answer = consumer.poll(1)
            if answer is None or answer.error():
                continue
            token, granted = header(answer, "oncebus-claim-token"), header(answer, "oncebus-answer") == "granted"
            with self.lock:
                if header(answer, "oncebus-start-id") not in ("", INSTANCE) or token not in self.held:
                    continue  # to another executor, or of an earlier event
                if not granted:
                    self.over[token].set()
                if token in self.answered and (not granted or header(answer, "oncebus-outcome") == "start"):
                    self.answered[token].set()

    def renew(self):
        """Asks for every event in process, also for those that wait for another one."""
        while not stopping.wait(RENEW_S):
            with self.lock:
                for token, key in self.held.items():
                    if not self.over[token].is_set() and token not in self.answered:
                        self.send("renew", token, key)

    def hold(self, events):
        with self.lock:
            self.held = {header(e, "oncebus-claim-token"): e.key() for e in events}
            self.held.pop("", None)
            self.over = {token: threading.Event() for token in self.held}

    def start(self, token, key):
        """Asks until there is an answer, and returns whether the start is granted."""
        answered = threading.Event()
        with self.lock:
            self.answered[token] = answered
        while not stopping.is_set():
            self.send("start", token, key)
            self.producer.flush(5)
            if answered.wait(ASK_AGAIN_S):
                break
        with self.lock:
            del self.answered[token]
            return answered.is_set() and not self.over[token].is_set()


def sent(error, _):
    """Logs a question that was not sent. It is asked again."""
    if error:
        print("question not sent, retrying:", error, flush=True)


def ends_process(task):
    """Runs a task of a thread of its own. If it fails, the process ends, and a restart goes on."""
    try:
        task()
    except Exception as failed:
        print("executor failed:", failed, flush=True)
        os._exit(1)


def outcome_headers(token, kind):
    return [("oncebus-claim-token", token), ("oncebus-outcome", kind), ("oncebus-start-id", INSTANCE)]


def execute(event, asker, journal, done):
    """Returns the kind and the value of an event's outcome; None for none."""
    token = header(event, "oncebus-claim-token")
    if not token:
        print("event without a claim, skipped:", header(event, "oncebus-verdict"), flush=True)
        return None
    if token in done:
        return done[token]
    if START and not asker.start(token, event.key()):
        print("attempt superseded, skipped:", token, flush=True)
        return None
    outcome = journal.done.get(token)
    if outcome is None:
        try:
            kind, result = "completed", work(event.value(), asker.over[token])
        except Rejected as refused:
            kind, result = "rejected", str(refused).encode()
        except Exception as failed:  # the event may be tried again, by the next attempt
            kind, result = "failed", str(failed).encode()
        if asker.over[token].is_set():
            print("attempt superseded, stopped:", token, flush=True)
            return None
        journal.write(token, kind, result)
        outcome = (kind, result)
    done[token] = outcome
    return outcome


def run():
    asker, journal = Asker(), Journal(JOURNAL)
    producer = Producer({"bootstrap.servers": BROKERS, "transactional.id": INSTANCE})
    producer.init_transactions(30)  # aborts what the process before left open
    consumer = Consumer({
        "bootstrap.servers": BROKERS, "group.id": GROUP, "enable.auto.commit": False, "auto.offset.reset": "earliest",
        "isolation.level": "read_committed", "session.timeout.ms": 6000, "heartbeat.interval.ms": 1000,
    })
    done = {}  # outcomes of events whose transaction has not committed: sent again without the work
    consumer.subscribe([INPUT])
    while not stopping.is_set():
        events = [e for e in consumer.consume(EVENTS_MAX, 1) if not e.error()]
        if not events:
            continue  # idle: no transaction is open
        asker.hold(events)
        outcomes = [(e, execute(e, asker, journal, done)) for e in events]
        if stopping.is_set():
            break
        try:
            commit(producer, consumer, outcomes)
            done.clear()
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            print("transaction aborted:", failed, flush=True)
            producer.abort_transaction(30)
            rewind(consumer)
        finally:
            asker.hold([])
    consumer.close()


def commit(producer, consumer, outcomes):
    """Commits outcomes and offsets in one transaction. The consumer's metadata has its generation, so
    the broker refuses the transaction of a process that lost the partition."""
    producer.begin_transaction()
    for event, outcome in outcomes:
        if outcome:
            kind, value = outcome
            producer.produce(OUTCOMES, key=event.key(), value=value, headers=outcome_headers(header(event, "oncebus-claim-token"), kind))
    offsets = {}
    for event, _ in outcomes:
        offsets[event.partition()] = TopicPartition(INPUT, event.partition(), event.offset() + 1)
    producer.send_offsets_to_transaction(list(offsets.values()), consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)


def rewind(consumer):
    """Reads again from the committed offsets."""
    for committed in consumer.committed(consumer.assignment(), timeout=30):
        if committed.offset < 0:
            committed.offset = OFFSET_BEGINNING
        consumer.seek(committed)


if __name__ == "__main__":
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stopping.set())
    try:
        run()
    except KafkaException as failed:
        sys.exit(f"executor failed: {failed}")  # a restart goes on
