// A small executor for a route of oncebus in claim mode, with kafkajs.
//
// It reads events with read_committed, charges a card, and commits outcome and offset in one transaction. While it works it renews
// each attempt, and it stops when the answers topic says that the attempt is superseded. With EXECUTOR_START=true it asks before each
// event. Its journal notes each event before the work. A crash may come after the charge and before its result is known: then the
// gateway knows, by the reference that each charge has. ../README.md has the protocol in ten steps, the settings, and what to do with
// a system that cannot be asked.

import { createHash, randomUUID } from "node:crypto";
import { once } from "node:events";
import { appendFileSync, closeSync, fsyncSync, openSync, readFileSync, realpathSync } from "node:fs";
import { createServer } from "node:net";
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
const CLAIMED_ONLY = process.env.EXECUTOR_CLAIMED_ONLY === "true";
const GATEWAY = (process.env.EXECUTOR_GATEWAY ?? "").replace(/\/+$/, "");
const GATEWAY_ASK = process.env.EXECUTOR_GATEWAY_ASK === "true"; // it knows no idempotency keys
const GATEWAY_LIMIT_MS = Number(process.env.EXECUTOR_GATEWAY_LIMIT_MS ?? "60000"); // until a request has its effect, or never

const RUN = randomUUID(); // on each question: an answer without it is to a question of an earlier start

const EVENTS_MAX = 50; // of one transaction
const ASK_AGAIN_MS = 5000; // an answer may be lost
const GATEWAY_PAUSE_MS = 2000; // between two requests

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

/**
 * Charges the amount of the event: this is what the executor does. It throws if the attempt is superseded. again says that an earlier
 * run was cut off, and may have charged.
 */
async function work(value: string, reference: string, again: boolean, superseded: AbortSignal): Promise<string> {
  let request: { account?: unknown; amount?: unknown; work_ms?: number } | null;
  try {
    request = JSON.parse(value);
  } catch {
    throw new Rejected("no JSON object");
  }
  if (typeof request?.account !== "string" || typeof request.amount !== "number") throw new Rejected("no account or no amount");
  if (request.amount > 1000) throw new Rejected(`${request.amount} is more than 1000`);
  await pause(request.work_ms ?? 0, undefined, { signal: superseded });
  if (GATEWAY) await charge({ reference, account: request.account, amount: request.amount }, again, superseded);
  return JSON.stringify({ account: request.account, granted: request.amount });
}

interface Charge {
  reference: string;
  account: string;
  amount: number;
}

/** The process stops. */
const stopping = new AbortController();

/**
 * Charges once. It throws if the attempt is superseded, or if the process stops without an answer. The gateway answers a request whose
 * Idempotency-Key it has seen as it did before. One without such keys is asked first for a charge with the reference: an earlier
 * request may have had its effect, although its answer was lost.
 */
async function charge(request: Charge, unsure: boolean, superseded: AbortSignal): Promise<void> {
  const over = AbortSignal.any([superseded, stopping.signal]);
  for (; ; unsure = true) {
    if (unsure) await pause(GATEWAY_ASK ? GATEWAY_LIMIT_MS : GATEWAY_PAUSE_MS, undefined, { signal: over });
    try {
      const asked = `${GATEWAY}/charges?${new URLSearchParams({ reference: request.reference })}`;
      if (GATEWAY_ASK && (await send(asked, {}, 404))) return;
      superseded.throwIfAborted();
      const headers = { "Content-Type": "application/json", "Idempotency-Key": request.reference };
      await send(`${GATEWAY}/charges`, { method: "POST", headers, body: JSON.stringify(request) }, undefined, [400, 402, 422]);
      return;
    } catch (error) {
      if (error instanceof Rejected || superseded.aborted) throw error;
      console.error("no answer of the gateway, asking again:", String(error)); // nothing says whether it charged
    }
  }
}

/**
 * Sends a request to the gateway. It returns false for the status missing. Other statuses than these say nothing of the charge: wrong
 * credentials, for example. No redirect is followed: a POST would become a GET.
 */
async function send(url: string, request: RequestInit, missing?: number, refused: number[] = []): Promise<boolean> {
  const { ok, status, body } = await fetch(url, { ...request, redirect: "manual", signal: AbortSignal.timeout(30_000) });
  await body?.cancel();
  if (ok) return true;
  if (status === missing) return false;
  throw refused.includes(status) ? new Rejected(`the gateway answers ${status}`) : new Error(`the gateway answers ${status}`);
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
 * The journal is a file with two lines for each event: one before its work, and one with its outcome. Both are on the disk before the
 * executor goes on. After a crash the first line alone says that the work may have had its effect. Its first line is the start id of the
 * executor: with another journal, or without this one, no start is granted again. Without a path nothing is kept.
 */
const journal = new Map<string, Outcome>();
const begun = new Set<string>();
let journalFile = -1;
let startId = INSTANCE;

/** Node has no locks of files. A socket with the journal's name ends with its process, too. Only Linux has it. */
async function lockJournal() {
  if (process.platform !== "linux") return;
  const name = createHash("sha256").update(realpathSync(JOURNAL)).digest("hex");
  try {
    await once(createServer().listen(`\0oncebus-executor-${name}`).unref(), "listening");
  } catch (error) {
    throw new Error(`journal ${JOURNAL}: another process has it: ${error}; give each process a journal of its own`);
  }
}

async function openJournal() {
  if (!JOURNAL) {
    if (!START || (GATEWAY && !GATEWAY_ASK)) return;
    throw new Error("set EXECUTOR_JOURNAL: without it nothing says after a crash that work has begun, and a start is granted again");
  }
  closeSync(openSync(JOURNAL, "a"));
  await lockJournal();
  let drawn = true;
  for (const text of readFileSync(JOURNAL, "utf8").split("\n")) {
    try {
      const line = JSON.parse(text);
      if (line.id) [startId, drawn] = [line.id, false];
      else begun.add(line.event);
      if (line.kind) journal.set(line.event, line);
    } catch {
      // a crash cut it short: what it announces was not done
    }
  }
  appendFileSync(JOURNAL, "\n");
  journalFile = openSync(JOURNAL, "a");
  if (!drawn) return;
  startId = `${INSTANCE}-${RUN}`;
  writeJournal({ id: startId });
}

/** Notes that the work on an event begins, and returns whether it had begun before. */
function begin(event: string): boolean {
  const again = begun.has(event);
  if (!again) writeJournal({ event });
  begun.add(event);
  return again;
}

function writeJournal(line: { id: string } | ({ event: string } & Partial<Outcome>)) {
  if (journalFile < 0) return;
  try {
    appendFileSync(journalFile, JSON.stringify(line) + "\n");
    fsyncSync(journalFile);
  } catch (error) {
    console.error("executor failed:", error);
    process.exit(1); // the work must not go on without its note
  }
}

/** Of the questions: one in the open transaction would not be read. */
const asker = kafka.producer();

/** Of the response by HTTP, with the text of the outcome. Without a status an error is a problem of oncebus with the text in it. */
const STATUSES: Record<string, string> = { rejected: "422", failed: "502" };

/** A question or an outcome. All of an event have its record key, so that oncebus reads them in their order. */
function record(key: Buffer | null, token: string, kind: string, value: string | null) {
  const headers: Record<string, string> = { "oncebus-claim-token": token, "oncebus-outcome": kind, "oncebus-start-id": startId };
  const status = STATUSES[kind];
  if (status) Object.assign(headers, { "http-status": status, "content-type": "text/plain; charset=utf-8" });
  return { key, value, headers };
}

const ask = (token: string, attempt: Held, kind: string) => {
  const question = record(attempt.key, token, kind, null);
  return asker.send({ topic: OUTCOMES, messages: [{ ...question, headers: { ...question.headers, "executor-run": RUN } }] });
};

/**
 * Asks until there is an answer, and returns whether the start is granted. The same start id gets the answer again. After a stop it asks
 * once more, because no other process gets an event that was granted to this one.
 */
async function start(token: string, attempt: Held): Promise<boolean> {
  for (let last = false; !attempt.answered && !last; ) {
    last = stopping.signal.aborted;
    const answered = new Promise<void>((resolve) => (attempt.asking = resolve));
    await ask(token, attempt, "start");
    const again = new AbortController();
    await Promise.race([answered, pause(ASK_AGAIN_MS, undefined, { signal: again.signal }).catch(() => {})]);
    again.abort();
  }
  attempt.asking = undefined;
  return attempt.answered && !attempt.over.signal.aborted;
}

/** Takes an answer. The answer superseded may come without a question. */
function takeAnswer(answer: KafkaMessage) {
  const attempt = held.get(tokenOf(answer));
  const id = header(answer, "oncebus-start-id");
  // To another executor, to an earlier start of this one, or of an earlier event.
  if (!attempt || (id !== "" && (id !== startId || header(answer, "executor-run") !== RUN))) return;
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

/**
 * Returns the outcome of an event; undefined for none, "stopped" if the process stops before it is known. An event without a claim is
 * executed, and has no outcome to record.
 */
async function execute(partition: number, event: KafkaMessage): Promise<Outcome | "stopped" | undefined> {
  if (stopping.signal.aborted) return "stopped";
  const token = tokenOf(event);
  if (!token && CLAIMED_ONLY) {
    console.error("event without a claim, skipped:", header(event, "oncebus-verdict"));
    return undefined;
  }
  // All attempts of a key have one reference, so that the other system finds an earlier one.
  const reference = header(event, "oncebus-key") || `${INPUT}/${partition}/${event.offset}`;
  const name = token || reference;
  if (done.has(name)) return done.get(name);
  const attempt = held.get(token) ?? new Held(event.key);
  if (token && START && !(await start(token, attempt))) {
    if (stopping.signal.aborted) return "stopped";
    console.error("attempt superseded, skipped:", token);
    return undefined;
  }
  let outcome = journal.get(name);
  if (!outcome) {
    // An earlier attempt may have a request on its way, too.
    const again = begin(name) || (GATEWAY_ASK && !["", "1"].includes(header(event, "oncebus-attempt")));
    outcome = await outcomeOf(String(event.value), reference, again, attempt.over.signal);
    if (attempt.over.signal.aborted) {
      console.error("attempt superseded:", name);
      return undefined;
    }
    if (!outcome) return "stopped";
    writeJournal({ event: name, ...outcome });
    journal.set(name, outcome);
  }
  done.set(name, outcome);
  return outcome;
}

/** Does the work. It returns undefined if it was cut off. */
async function outcomeOf(value: string, reference: string, again: boolean, superseded: AbortSignal): Promise<Outcome | undefined> {
  if (again && !GATEWAY) {
    // Fill in here how the other system is asked. Work that runs again may have its effect twice.
    // After submitted the claim stays until somebody writes another outcome. rejected would free the key.
    console.error("not run again, because a crash cut it off:", reference);
    return { kind: "submitted", value: "a crash cut the work off, and nothing says whether it had its effect: look, and write the outcome" };
  }
  try {
    return { kind: "completed", value: await work(value, reference, again, superseded) };
  } catch (error) {
    if (superseded.aborted || stopping.signal.aborted) return undefined;
    // after failed the event may be tried again, by the next attempt
    return { kind: error instanceof Rejected ? "rejected" : "failed", value: String((error as Error).message) };
  }
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
const consumer = kafka.consumer({
  groupId: GROUP, sessionTimeout: 6000, heartbeatInterval: 1000, maxWaitTimeInMs: 1000, readUncommitted: false,
  rebalanceTimeout: 300_000, // another process of the group waits so long for the transaction of this one
});

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
  let offset = BigInt(events[0].offset); // the next one that the group reads
  for (const event of events) {
    const outcome = await execute(partition, event);
    if (outcome === "stopped") break; // what is finished is sent, and another process gets the others
    offset = BigInt(event.offset) + 1n;
    if (outcome && tokenOf(event)) messages.push(record(event.key, tokenOf(event), outcome.kind, outcome.value));
    else if (outcome && header(event, "oncebus-reply-to")) {
      // no claim, and a request waits
      const { "oncebus-claim-token": _, ...headers } = record(null, "", outcome.kind, null).headers;
      messages.push({ key: event.key, value: outcome.value, headers: { ...headers, "oncebus-reply-to": header(event, "oncebus-reply-to") } });
    }
  }
  const transaction = await owner.transaction();
  try {
    if (messages.length > 0) await transaction.send({ topic: OUTCOMES, messages });
    await transaction.sendOffsets({ consumerGroupId: GROUP, topics: [{ topic: INPUT, partitions: [{ partition, offset: String(offset) }] }] });
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
  await openJournal();
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
      stopping.abort();
      await consumer.disconnect().catch(() => {}); // it waits for the work, and the work for answers
      await Promise.allSettled([disown(), answers.disconnect(), asker.disconnect(), admin.disconnect()]);
      if (journalFile >= 0) closeSync(journalFile);
      process.exit(0);
    });
  }
  await consumer.connect();
  await consumer.subscribe({ topic: INPUT, fromBeginning: true });
  await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch: (payload) => processBatch(admin, payload) });
}

await run();
