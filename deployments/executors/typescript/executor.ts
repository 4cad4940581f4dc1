// A small executor for a route of oncebus in claim mode, with kafkajs.
//
// It reads events with read_committed, works, and commits outcome and offset in one transaction. While it works it renews each
// attempt, and it stops when the answers topic says that the attempt is superseded. With EXECUTOR_START=true it asks before each
// event, and its journal has what it did, so that no event is executed twice. ../README.md has the protocol in ten steps, and the
// settings.

import { appendFileSync, closeSync, existsSync, fsyncSync, openSync, readFileSync, writeSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import kafkajs, { type Admin, type EachBatchPayload, type IHeaders, type KafkaMessage, type Producer, type Transaction } from "kafkajs";
// @ts-expect-error: the package has no types
import SnappyCodec from "kafkajs-snappy";

const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = kafkajs;
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec; // kafkajs itself has gzip only, and oncebus writes with snappy

function setting(name: string): string {
  const value = process.env[`EXECUTOR_${name}`];
  if (value === undefined) throw new Error(`set EXECUTOR_${name}`);
  return value;
}

const INPUT = setting("INPUT");
const OUTCOMES = setting("OUTCOMES");
const ANSWERS = process.env.EXECUTOR_ANSWERS ?? "";
const GROUP = setting("GROUP");
const INSTANCE = setting("INSTANCE"); // different for each process, and the same after a restart
const RENEW_MS = Number(setting("RENEW_MS"));
const START = process.env.EXECUTOR_START === "true";
const JOURNAL = process.env.EXECUTOR_JOURNAL ?? "";

const EVENTS_MAX = 50; // of one transaction
const ASK_AGAIN_MS = 5000; // an answer may be lost

const kafka = new Kafka({ clientId: INSTANCE, brokers: setting("BROKERS").split(","), logLevel: logLevel.ERROR });

interface Outcome {
  kind: string;
  value: string;
}

/** Refuses an event permanently. After any other error it may be tried again. */
class Rejected extends Error {
  constructor(why: string) {
    super(`rejected: ${why}`);
  }
}

/** Grants the amount of the event: this is what the executor does. It throws if the attempt is superseded. */
async function work(value: string, superseded: AbortSignal): Promise<string> {
  let request: { account?: unknown; amount?: unknown; work_ms?: number } | null;
  try {
    request = JSON.parse(value);
  } catch {
    throw new Rejected("no JSON object");
  }
  if (typeof request?.account !== "string" || typeof request.amount !== "number") throw new Rejected("no account or no amount");
  if (request.amount > 1000) throw new Rejected(`${request.amount} is more than 1000`);
  await pause(request.work_ms ?? 0, undefined, { signal: superseded });
  return JSON.stringify({ account: request.account, granted: request.amount });
}

function header(message: { headers?: IHeaders }, name: string): string {
  const value = message.headers?.[name];
  return value === undefined ? "" : String(Array.isArray(value) ? value[0] : value);
}

const tokenOf = (message: { headers?: IHeaders }) => header(message, "oncebus-claim-token");

/** An event in process. over is aborted when the attempt is superseded; answered resolves with the answer to start. */
class Held {
  readonly over = new AbortController();
  asking?: () => void;
  answered = false;
  constructor(readonly key: Buffer | null) {}
}

const held = new Map<string, Held>();

/**
 * The journal is a file with a line for each event that was executed: the effect of this example's work. A crash before the commit
 * does not execute such an event again. An executor that calls another system asks that system instead.
 */
const journal = new Map<string, Outcome>();
let journalFile = -1;

function openJournal() {
  if (!JOURNAL) return;
  for (const text of existsSync(JOURNAL) ? readFileSync(JOURNAL, "utf8").split("\n") : []) {
    try {
      const line = JSON.parse(text);
      journal.set(line.token, line);
    } catch {
      // a crash cut it short: the event was not executed to its end
    }
  }
  appendFileSync(JOURNAL, "\n");
  journalFile = openSync(JOURNAL, "a");
}

function writeJournal(token: string, outcome: Outcome) {
  if (journalFile < 0) return;
  writeSync(journalFile, JSON.stringify({ token, ...outcome }) + "\n");
  fsyncSync(journalFile);
  journal.set(token, outcome);
}

/** Of the questions: one in the open transaction would not be read. */
const asker = kafka.producer();

/** A question or an outcome. All of an event have its record key, so that oncebus reads them in their order. */
function record(key: Buffer | null, token: string, kind: string, value: string | null) {
  return { key, value, headers: { "oncebus-claim-token": token, "oncebus-outcome": kind, "oncebus-start-id": INSTANCE } };
}

const ask = (token: string, attempt: Held, kind: string) =>
  asker.send({ topic: OUTCOMES, messages: [record(attempt.key, token, kind, null)] });

/** Asks until there is an answer, and returns whether the start is granted. The same start id gets the answer again. */
async function start(token: string, attempt: Held): Promise<boolean> {
  while (!attempt.answered) {
    const answered = new Promise<void>((resolve) => (attempt.asking = resolve));
    await ask(token, attempt, "start");
    const again = new AbortController();
    await Promise.race([answered, pause(ASK_AGAIN_MS, undefined, { signal: again.signal }).catch(() => {})]);
    again.abort();
  }
  attempt.asking = undefined;
  return !attempt.over.signal.aborted;
}

/** Takes an answer. The answer superseded may come without a question. */
function takeAnswer(answer: KafkaMessage) {
  const attempt = held.get(tokenOf(answer));
  const id = header(answer, "oncebus-start-id");
  if (!attempt || (id !== "" && id !== INSTANCE)) return; // to another executor, or of an earlier event
  const granted = header(answer, "oncebus-answer") === "granted";
  if (!granted) attempt.over.abort();
  if (!granted || header(answer, "oncebus-outcome") === "start") {
    attempt.answered = true;
    attempt.asking?.();
  }
}

/** Asks for every event in process, also for those that wait for another one. */
async function renew() {
  const asked = [...held].filter(([, attempt]) => !attempt.asking && !attempt.over.signal.aborted);
  await Promise.all(asked.map(([token, attempt]) => ask(token, attempt, "renew")));
}

/** The outcomes of events whose transaction has not committed: they are sent again without the work. */
const done = new Map<string, Outcome>();

/** Returns the outcome of an event; undefined for none. */
async function execute(event: KafkaMessage): Promise<Outcome | undefined> {
  const token = tokenOf(event);
  const attempt = held.get(token);
  if (!attempt) {
    console.error("event without a claim, skipped:", header(event, "oncebus-verdict"));
    return undefined;
  }
  if (done.has(token)) return done.get(token);
  if (START && !(await start(token, attempt))) {
    console.error("attempt superseded, skipped:", token);
    return undefined;
  }
  let outcome = journal.get(token);
  if (!outcome) {
    try {
      outcome = { kind: "completed", value: await work(String(event.value), attempt.over.signal) };
    } catch (error) {
      // after failed the event may be tried again, by the next attempt
      outcome = { kind: error instanceof Rejected ? "rejected" : "failed", value: String((error as Error).message) };
    }
    if (attempt.over.signal.aborted) {
      console.error("attempt superseded, stopped:", token);
      return undefined;
    }
    writeJournal(token, outcome);
  }
  done.set(token, outcome);
  return outcome;
}

/**
 * An owned partition. kafkajs does not send the group's generation with an offset, so the broker would accept that of a process which
 * lost the partition. Instead each partition has a transactional id: its next owner fences the producer of the one before.
 */
class Owned {
  constructor(
    readonly producer: Producer,
    private next: Transaction | undefined,
  ) {}

  static async fence(partition: number): Promise<Owned> {
    const producer = kafka.producer({ transactionalId: `${GROUP}-${INPUT}-${partition}`, idempotent: true, maxInFlightRequests: 1 });
    await producer.connect();
    // This ends the transaction of the former owner. No record is in it yet, so none is open while the executor is idle.
    return new Owned(producer, await producer.transaction());
  }

  async transaction(): Promise<Transaction> {
    const next = this.next ?? (await this.producer.transaction());
    this.next = undefined;
    return next;
  }
}

const owned = new Map<number, Owned>();

async function disown() {
  const all = [...owned.values()];
  owned.clear();
  await Promise.allSettled(all.map((o) => o.producer.disconnect()));
}

// kafkajs sends no heartbeat while it waits for events, so it must wait for less than the session timeout.
const consumer = kafka.consumer({ groupId: GROUP, sessionTimeout: 6000, heartbeatInterval: 1000, maxWaitTimeInMs: 1000, readUncommitted: false });

/** The next offset of the group. */
async function committed(admin: Admin, partition: number): Promise<string> {
  const [topic] = await admin.fetchOffsets({ groupId: GROUP, topics: [INPUT] });
  const offset = topic.partitions.find((p) => p.partition === partition)?.offset ?? "-1";
  if (offset !== "-1") return offset;
  const starts = await admin.fetchTopicOffsets(INPUT);
  return starts.find((p) => p.partition === partition)?.low ?? "0";
}

async function processBatch(admin: Admin, { batch, heartbeat, isRunning, isStale, resolveOffset }: EachBatchPayload) {
  const { partition } = batch;
  if (!owned.has(partition)) {
    // First the former owner is fenced, then its last commit is read: it may have ended after this batch was fetched.
    owned.set(partition, await Owned.fence(partition));
    const next = await committed(admin, partition);
    if (next !== batch.messages[0].offset) return consumer.seek({ topic: INPUT, partition, offset: next });
  }
  for (let at = 0; at < batch.messages.length && isRunning() && !isStale(); at += EVENTS_MAX) {
    const events = batch.messages.slice(at, at + EVENTS_MAX);
    for (const event of events) if (tokenOf(event)) held.set(tokenOf(event), new Held(event.key));
    // kafkajs has no thread for the heartbeats of a long job.
    const tick = setInterval(() => void Promise.all([heartbeat(), renew()]).catch((error) => console.error(String(error))), RENEW_MS);
    try {
      if (!(await transact(owned.get(partition)!, partition, events))) return;
      resolveOffset(events[events.length - 1].offset);
    } finally {
      clearInterval(tick);
      held.clear();
    }
    await heartbeat();
  }
}

/** Executes events, and commits their outcomes and offsets in one transaction. */
async function transact(owner: Owned, partition: number, events: KafkaMessage[]): Promise<boolean> {
  const messages = [];
  for (const event of events) {
    const outcome = await execute(event);
    if (outcome) messages.push(record(event.key, tokenOf(event), outcome.kind, outcome.value));
  }
  const transaction = await owner.transaction();
  try {
    if (messages.length > 0) await transaction.send({ topic: OUTCOMES, messages });
    const offset = String(BigInt(events[events.length - 1].offset) + 1n);
    await transaction.sendOffsets({ consumerGroupId: GROUP, topics: [{ topic: INPUT, partitions: [{ partition, offset }] }] });
    await transaction.commit();
  } catch (error) {
    console.error("transaction aborted:", String(error));
    await transaction.abort();
    consumer.seek({ topic: INPUT, partition, offset: events[0].offset });
    return false;
  }
  done.clear();
  return true;
}

async function run() {
  openJournal();
  await asker.connect();
  const admin = kafka.admin();
  await admin.connect();
  const answers = kafka.consumer({ groupId: `${GROUP}-answers-${INSTANCE}`, sessionTimeout: 6000, maxWaitTimeInMs: 1000, readUncommitted: false });
  consumer.on(consumer.events.GROUP_JOIN, () => void disown());
  for (const reader of [consumer, answers]) {
    reader.on(reader.events.CRASH, ({ payload }) => {
      if (payload.restart) return;
      console.error("executor failed:", payload.error);
      process.exit(1); // a restart goes on
    });
  }
  if (ANSWERS) {
    await answers.connect();
    await answers.subscribe({ topic: ANSWERS, fromBeginning: false });
    await answers.run({ autoCommit: false, eachMessage: async ({ message }) => takeAnswer(message) });
  }
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.once(signal, async () => {
      await Promise.allSettled([consumer.disconnect(), answers.disconnect()]);
      await Promise.allSettled([disown(), asker.disconnect(), admin.disconnect()]);
      if (journalFile >= 0) closeSync(journalFile);
      process.exit(0);
    });
  }
  await consumer.connect();
  await consumer.subscribe({ topic: INPUT, fromBeginning: true });
  await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch: (payload) => processBatch(admin, payload) });
}

await run();
