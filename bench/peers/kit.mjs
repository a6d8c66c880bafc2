// What every adapter for Node is made of: the same two ways to start, the same requests, the same
// environment and the same body of a job as in kit.py.

import { appendFileSync, renameSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { join } from "node:path";

export const URL_ = process.env.BENCH_URL ?? "";
export const PAD = "x".repeat(Number(process.env.BENCH_PAD ?? 0));
const JOB_MS = Number(process.env.BENCH_JOB_MS ?? 0);
const FAILS = process.env.BENCH_FAIL === "1";
export const SLOTS = Number(process.env.BENCH_SLOTS ?? 0);
export const GATE = process.env.BENCH_GATE ?? "";
export const LIMIT = Number(process.env.BENCH_LIMIT ?? 50);
export const RATE = Number(process.env.BENCH_RATE ?? 1000000);
export const KEYS = Number(process.env.BENCH_KEYS ?? 500);
const SPANS = process.env.BENCH_SPANS === "1";
const TALLY = process.env.BENCH_TALLY ?? ".";
const CHUNK = 1000;
// How many jobs a peer is given in one call; fewer where it is faster with fewer.
const AT_ONCE = Number(process.env.BENCH_AT_ONCE ?? 10000);
const TALLY_MS = 20;

// Packages live in the system's own folder, not beside this file.
export const need = createRequire(join(process.env.BENCH_MODULES ?? ".", "package.json"));

export const now = () => Number(process.hrtime.bigint());

let count = 0;
let first = 0;
let waits = [];
let spans = [];
const seen = new Set();

/** The key of job n, where jobs have one. */
export const key = (n) => `k${KEYS ? n % KEYS : n}`;

/** The whole of a job. */
export async function ran({ n, sent }) {
  const began = SPANS ? now() : 0;
  if (++count === 1) {
    first = now();
    keepTally();
  }
  if (sent) waits.push(now() - sent);
  if (FAILS && n % 100 === 0 && !seen.has(n)) {
    seen.add(n);
    throw new Error("planned");
  }
  if (JOB_MS) await new Promise((resolve) => setTimeout(resolve, JOB_MS));
  if (SPANS) spans.push(`${n} ${began} ${now()}\n`);
}

function keepTally() {
  const path = join(TALLY, `${process.pid}`);
  let written = 0;
  setInterval(() => {
    if (count !== written) {
      writeFileSync(`${path}.new`, `${count} ${first} ${now()}`);
      renameSync(`${path}.new`, `${path}.count`);
      written = count;
    }
    if (waits.length) {
      appendFileSync(`${path}.waits`, waits.map((wait) => `${wait}\n`).join(""));
      waits = [];
    }
    if (spans.length) {
      appendFileSync(`${path}.spans`, spans.join(""));
      spans = [];
    }
  }, TALLY_MS);
}

export class Unsupported extends Error {}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class Producer {
  n = 0;

  constructor(peer) {
    this.peer = peer;
  }

  async setup() {
    await this.peer.setup?.();
    await this.peer.open?.();
    return {};
  }

  async open() {
    await this.peer.open?.();
    return {};
  }

  async fill({ count }) {
    const started = now();
    const end = this.n + count;
    while (this.n < end) {
      const step = Math.min(CHUNK, end - this.n);
      await this.peer.enqueueMany(this.jobs(step));
      this.n += step;
    }
    return { count, seconds: (now() - started) / 1e9 };
  }

  async single({ seconds }) {
    const started = now();
    const end = started + seconds * 1e9;
    const from = this.n;
    while (now() < end) await this.peer.enqueue({ n: this.n++, sent: 0, pad: PAD });
    return { count: this.n - from, seconds: (now() - started) / 1e9 };
  }

  async bulk({ seconds }) {
    const atOnce = this.peer.atOnce ?? AT_ONCE;
    const started = now();
    const end = started + seconds * 1e9;
    const from = this.n;
    while (now() < end) {
      await this.peer.enqueueMany(this.jobs(atOnce));
      this.n += atOnce;
    }
    return { count: this.n - from, seconds: (now() - started) / 1e9 };
  }

  async concurrent({ seconds, callers }) {
    const started = now();
    const end = started + seconds * 1e9;
    const from = this.n;
    const call = async () => {
      while (now() < end) await this.peer.enqueue({ n: this.n++, sent: 0, pad: PAD });
    };
    await Promise.all(Array.from({ length: callers }, call));
    return { count: this.n - from, seconds: (now() - started) / 1e9 };
  }

  async paced({ count, gap }) {
    const started = now();
    for (let i = 0; i < count; i++) {
      const wait = (started + i * gap * 1e9 - now()) / 1e6;
      if (wait > 0) await sleep(wait);
      await this.peer.enqueue({ n: this.n++, sent: now(), pad: PAD });
    }
    return { count, seconds: (now() - started) / 1e9 };
  }

  async pending() {
    const at = now();
    return { count: await this.peer.pending(), at };
  }

  jobs(step) {
    return Array.from({ length: step }, (_, i) => ({ n: this.n + i, sent: 0, pad: PAD }));
  }
}

/** Run an adapter as the harness asked. */
export async function main(peer) {
  if (process.argv[2] === "worker") {
    await peer.work();
    return;
  }
  console.log = console.info = console.debug = console.error; // answers have stdout to themselves
  const producer = new Producer(peer);
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: verb, ...request } = JSON.parse(line);
    let answer;
    try {
      answer = await producer[verb](request);
    } catch (error) {
      answer =
        error instanceof Unsupported
          ? { unsupported: error.message }
          : { error: `${error.name}: ${error.message}`, trace: error.stack };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}
