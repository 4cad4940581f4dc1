"""A small executor for a route of oncebus in claim mode, with confluent-kafka.

It reads events with read_committed, charges a card, and commits outcome and offset in one transaction.
While it works it renews each attempt, and it stops when the answers topic says that the attempt is
superseded. With EXECUTOR_START=true it asks before each event. Its journal notes each event before the
work. A crash may come after the charge and before its result is known: then the gateway knows, by the
reference that each charge has. ../README.md has the protocol in ten steps, the settings, and what to do
with a system that cannot be asked.
"""

import fcntl
import http.client
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

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
CLAIMED_ONLY = os.environ.get("EXECUTOR_CLAIMED_ONLY") == "true"
GATEWAY = os.environ.get("EXECUTOR_GATEWAY", "").rstrip("/")
GATEWAY_ASK = os.environ.get("EXECUTOR_GATEWAY_ASK") == "true"  # it knows no idempotency keys
GATEWAY_LIMIT_S = int(os.environ.get("EXECUTOR_GATEWAY_LIMIT_MS", "60000")) / 1000  # until a request has its effect, or never

RUN = uuid.uuid4().hex  # on each question: an answer without it is to a question of an earlier start

EVENTS_MAX = 50  # of one transaction
ASK_AGAIN_S = 5  # an answer may be lost
GATEWAY_PAUSE_S = 2  # between two requests

stopping = threading.Event()


class Stopped(Exception):
    """The process stops before the outcome of an event is known."""


class Rejected(Exception):
    """Refuses an event permanently. After any other error it may be tried again."""


def work(value, reference, again, superseded):
    """Charges the amount of the event: this is what the executor does. None if it did not end, because the
    attempt is superseded or the process stops. again says that an earlier run was cut off, and may have
    charged."""
    try:
        request = json.loads(value)
        account, amount = request["account"], request["amount"]
    except (ValueError, KeyError, TypeError):
        raise Rejected("rejected: no JSON object with account and amount") from None
    if amount > 1000:
        raise Rejected(f"rejected: {amount} is more than 1000")
    if superseded.wait(request.get("work_ms", 0) / 1000):
        return None
    if GATEWAY and not charge({"reference": reference, "account": account, "amount": amount}, again, superseded):
        return None
    return json.dumps({"account": account, "granted": amount}, separators=(",", ":")).encode()


def charge(request, unsure, superseded):
    """Charges once, and returns whether it did. The gateway answers a request whose Idempotency-Key it has
    seen as it did before. One without such keys is asked first for a charge with the reference: an
    earlier request may have had its effect, although its answer was lost."""
    charges = GATEWAY + "/charges"
    body = json.dumps(request).encode()
    pause = GATEWAY_LIMIT_S if GATEWAY_ASK else GATEWAY_PAUSE_S
    while not superseded.wait(pause if unsure else 0) and not (unsure and stopping.is_set()):
        unsure = True
        try:
            if GATEWAY_ASK:
                asked = charges + "?" + urllib.parse.urlencode({"reference": request["reference"]})
                if send(urllib.request.Request(asked), missing=404):
                    return True
                if superseded.is_set():
                    return False
            headers = {"Content-Type": "application/json", "Idempotency-Key": request["reference"]}
            return send(urllib.request.Request(charges, body, headers), refused=(400, 402, 422))
        except (OSError, http.client.HTTPException) as unknown:  # nothing says whether it charged
            print("no answer of the gateway, asking again:", unknown, flush=True)
    return False


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a POST would become a GET."""

    def redirect_request(self, *_):
        return None


opener = urllib.request.build_opener(NoRedirect)


def send(request, missing=None, refused=()):
    """Sends a request to the gateway. It returns False for the status missing. Other statuses than these
    say nothing of the charge: wrong credentials, for example."""
    try:
        with opener.open(request, timeout=30):
            return True
    except urllib.error.HTTPError as answer:
        if answer.code == missing:
            return False
        if answer.code in refused:
            raise Rejected(f"rejected: the gateway answers {answer.code}") from None
        raise


def header(record, name):
    for key, value in record.headers() or []:
        if key == name and value is not None:
            return value.decode()
    return ""


class Journal:
    """A file with two lines for each event: one before its work, and one with its outcome. Both are on
    the disk before the executor goes on. After a crash the first line alone says that the work may have
    had its effect. Its first line is the start id of the executor: with another journal, or without this one,
    no start is granted again. The file is locked. Without a path nothing is kept."""

    def __init__(self, path):
        self.id, self.begun, self.done, self.file = None, set(), {}, None
        if not path:
            self.id = INSTANCE
            if START and (not GATEWAY or GATEWAY_ASK):
                sys.exit("set EXECUTOR_JOURNAL: without it nothing says after a crash that work has begun, and a start is granted again")
            return
        self.file = open(path, "a+", encoding="utf-8")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failed:
            sys.exit(f"journal {path}: another process has it: {failed}; give each process a journal of its own")
        self.file.seek(0)
        for text in self.file:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # a crash cut it short: what it announces was not done
            if "id" in line:
                self.id = line["id"]
                continue
            self.begun.add(line["event"])
            if "kind" in line:
                self.done[line["event"]] = (line["kind"], bytes.fromhex(line["result"]))
        print(file=self.file, flush=True)  # ends a line that was cut short
        if not self.id:
            self.id = INSTANCE + "-" + uuid.uuid4().hex
            self.write({"id": self.id})

    def begin(self, event):
        """Notes that the work on an event begins, and returns whether it had begun before."""
        again = event in self.begun
        if not again:
            self.write({"event": event})
            self.begun.add(event)
        return again

    def end(self, event, kind, result):
        self.write({"event": event, "kind": kind, "result": result.hex()})
        self.done[event] = (kind, result)

    def write(self, line):
        if self.file:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())


class Asker:
    """Asks start and renew with a producer of its own, because a question in the open transaction
    would not be read, and reads the answers."""

    def __init__(self, start_id):
        self.start_id = start_id
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
            self.producer.produce(OUTCOMES, key=key, headers=[*outcome_headers(token, kind, self.start_id), ("executor-run", RUN)], on_delivery=sent)
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
        while True:
            answer = consumer.poll(1)
            if answer is None or answer.error():
                continue
            token, granted = header(answer, "oncebus-claim-token"), header(answer, "oncebus-answer") == "granted"
            start_id = header(answer, "oncebus-start-id")
            with self.lock:
                if start_id and (start_id != self.start_id or header(answer, "executor-run") != RUN) or token not in self.held:
                    continue  # to another executor, to an earlier start of this one, or of an earlier event
                if not granted:
                    self.over[token].set()
                if token in self.answered and (not granted or header(answer, "oncebus-outcome") == "start"):
                    self.answered[token].set()

    def renew(self):
        """Asks for every event in process, also for those that wait for another one, and after a stop,
        which waits for the work."""
        while True:
            time.sleep(RENEW_S)
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
        """Asks until there is an answer, and returns whether the start is granted. After a stop it asks once
        more, because no other process gets an event that was granted to this one."""
        answered = threading.Event()
        with self.lock:
            self.answered[token] = answered
        last = False
        while not answered.is_set() and not last:
            last = stopping.is_set()
            self.send("start", token, key)
            self.producer.flush(5)
            answered.wait(ASK_AGAIN_S)
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


def outcome_headers(token, kind, start_id):
    return [("oncebus-claim-token", token), ("oncebus-outcome", kind), ("oncebus-start-id", start_id)]


def response_headers(kind):
    """The status and type of the response by HTTP. Without them an error is a problem of oncebus with the text in it."""
    status = {"rejected": "422", "failed": "502"}.get(kind)
    return [("http-status", status), ("content-type", "text/plain; charset=utf-8")] if status else []


def execute(event, asker, journal, done):
    """Returns the kind and the value of an event's outcome; None for none. An event without a claim is
    executed, and has no outcome to record: only a request that waits gets it."""
    if stopping.is_set():
        raise Stopped
    token = header(event, "oncebus-claim-token")
    if not token and CLAIMED_ONLY:
        print("event without a claim, skipped:", header(event, "oncebus-verdict"), flush=True)
        return None
    # All attempts of a key have one reference, so that the other system finds an earlier one.
    reference = header(event, "oncebus-key") or f"{event.topic()}/{event.partition()}/{event.offset()}"
    name = token or reference
    if name in done:
        return done[name]
    if token and START and not asker.start(token, event.key()):
        if stopping.is_set():
            raise Stopped
        print("attempt superseded, skipped:", token, flush=True)
        return None
    outcome = journal.done.get(name)
    if outcome is None:
        # An earlier attempt may have a request on its way, too.
        again = journal.begin(name)
        if GATEWAY_ASK and header(event, "oncebus-attempt") not in ("", "1"):
            again = True
        superseded = asker.over[token] if token else threading.Event()
        outcome = outcome_of(event.value(), reference, again, superseded)
        if superseded.is_set():
            print("attempt superseded:", name, flush=True)
            return None
        if outcome is None:
            raise Stopped
        journal.end(name, *outcome)
    done[name] = outcome
    return outcome


def outcome_of(value, reference, again, superseded):
    if again and not GATEWAY:
        # Fill in here how the other system is asked. Work that runs again may have its effect twice.
        # After submitted the claim stays until somebody writes another outcome. rejected would free the key.
        print("not run again, because a crash cut it off:", reference, flush=True)
        return "submitted", b"a crash cut the work off, and nothing says whether it had its effect: look, and write the outcome"
    try:
        result = work(value, reference, again, superseded)
        if result is None and (superseded.is_set() or stopping.is_set()):
            return None
        return "completed", result or b""
    except Rejected as refused:
        return "rejected", str(refused).encode()
    except Exception as failed:  # the event may be tried again, by the next attempt
        return "failed", str(failed).encode()


def run():
    journal = Journal(JOURNAL)
    asker = Asker(journal.id)
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
        outcomes = []
        try:
            for event in events:
                outcomes.append((event, execute(event, asker, journal, done)))
        except Stopped:
            pass  # what is finished is sent, and another process gets the others
        if not outcomes:
            break
        try:
            commit(producer, consumer, outcomes, journal.id)
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


def commit(producer, consumer, outcomes, start_id):
    """Commits outcomes and offsets in one transaction. The consumer's metadata has its generation, so
    the broker refuses the transaction of a process that lost the partition."""
    producer.begin_transaction()
    for event, outcome in outcomes:
        token, reply_to = header(event, "oncebus-claim-token"), header(event, "oncebus-reply-to")
        if not outcome or not token and not reply_to:
            continue
        kind, value = outcome
        headers = outcome_headers(token, kind, start_id) if token else [("oncebus-reply-to", reply_to), ("oncebus-outcome", kind)]
        producer.produce(OUTCOMES, key=event.key(), value=value, headers=headers + response_headers(kind))
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
