import type { Client } from "./client.js";
import { type ClaimedJob, Context } from "./context.js";
import { type Duration, milliseconds, pause } from "./duration.js";
import { WinchError } from "./errors.js";
import { Finisher, outcomeOf, timedOut } from "./finisher.js";
import { stopOnSignals } from "./process.js";
import { Stopped } from "./outcomes.js";
import { uuid } from "./random.js";
import { type Beat, type Order, type Ref, Session } from "./session.js";
import type { Args, NewJob, Task } from "./task.js";

const MOST_IN_CLAIM = 200;
const MOST_ANSWERS = 100;
// Deno sends a request again when a kept connection breaks, a claim too. What the first one took goes back when the
// second is answered, so its wait is short.
const POLL_MS = 5_000;
// How long handlers that were asked to stop have until their job, or the session, ends without them.
const STOP_MS = 1000;
// What a timer of JavaScript can hold: 24 days.
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const FAILED_CLAIM_MS = 500;
const GREATEST_FAILED_CLAIM_MS = 5000;

export type Handler<A extends Args = any, R = unknown> = (args: A, ctx: Context) => R | Promise<R>;

export interface WorkerOptions {
  /** The queues that it serves. */
  queues: readonly string[];
  /** How many jobs it runs at once. */
  slots?: number;
  /** Its jobs go to others when the server has not heard of it for so long. */
  lease?: Duration;
  /** What operators see of it. */
  name?: string;
  labels?: Readonly<Record<string, string>>;
  release?: string;
  /** Around each handler: open a span, set up a context. It must return what `next` returns. */
  around?: (ctx: Context, next: () => Promise<unknown>) => Promise<unknown>;
  /** Where it writes what went wrong; the default is `console.error`. */
  log?: (line: string) => void;
}

export interface RunOptions {
  /** End as soon as the queues are empty. */
  burst?: boolean;
  /** How long running jobs get at the end, before they are asked to stop and go back to their queues. */
  grace?: Duration;
  /** Stop on SIGTERM and SIGINT; a second one asks the running handlers to stop at once. */
  signals?: boolean;
}

/** Claims jobs of its queues and runs them until it is stopped. */
export class Worker {
  readonly #client: Client;
  readonly #options: WorkerOptions;
  readonly #slots: number;
  readonly #tasks = new Map<string, { task: Task; handler: Handler }>();
  readonly #running = new Map<string, Context>();
  readonly #claiming = new Set<string>();
  readonly #met = new Set<string>();
  readonly #session: Session;
  readonly #finisher: Finisher;
  #answers: { id: string; state: "done" | "failed"; text: string }[] = [];
  #stop = new AbortController();
  #hurry = new AbortController();
  #cutClaim = new AbortController();
  #isQuiet = false;
  #graceMs = 0;
  // Handlers that have not returned, those of a session that has ended too.
  #busy = 0;
  #changed: () => void = () => {};

  constructor(client: Client, options: WorkerOptions) {
    if (options.queues.length === 0) throw new TypeError("a worker needs a queue: { queues: ['mail'] }");
    this.#client = client;
    this.#options = options;
    this.#slots = options.slots ?? 10;
    this.#session = new Session(client, () => this.#about(), () => this.#lose());
    this.#finisher = new Finisher(this.#session, (line) => this.#log(line), (ref) => this.#ended(ref));
  }

  /** Register the handler of a task: it gets the arguments and a context. With a schema the task is published. */
  task<A extends Args, R>(task: Task<A, R>, handler: Handler<A, R>): this;
  task<A extends Args = any>(task: string, handler: Handler<A>): this;
  task(task: string | Task<any, any>, handler: Handler): this {
    const known = typeof task === "string" ? { name: task } : task;
    this.#tasks.set(known.name, { task: known, handler });
    return this;
  }

  /** Claim nothing more. `run` returns when the running jobs have ended. */
  stop(): void {
    this.#stop.abort();
    this.#cutClaim.abort();
    this.#changed();
  }

  /** Work until stopped. */
  async run(options: RunOptions = {}): Promise<void> {
    if (this.#tasks.size === 0) throw new TypeError("a worker needs a handler: worker.task('shop.mail', …)");
    const forget = options.signals === false ? () => {} : stopOnSignals(() => this.stop(), () => this.#hurry.abort());
    const over = new AbortController();
    this.#graceMs = milliseconds(options.grace ?? "30s");
    let heart: Promise<void> = Promise.resolve();
    try {
      await this.#session.begin();
      heart = this.#beat(over.signal);
      await this.#claimUntilStopped(options.burst ?? false);
      await this.#idle(() => this.#graceMs, this.#hurry.signal);
      for (const context of this.#running.values()) context.stop("stop");
      await this.#idle(() => STOP_MS);
    } finally {
      this.#session.isOver = true;
      await this.#finisher.close(STOP_MS);
      over.abort();
      await heart;
      await this.#session.end().catch((error) => this.#log(`the session ends with its lease: ${text(error)}`));
      forget();
      this.#session.isOver = false;
      this.#stop = new AbortController();
      this.#hurry = new AbortController();
    }
  }

  #about(): Record<string, unknown> {
    const contracts = [...this.#tasks.values()]
      .filter(({ task }) => task.schema !== undefined)
      .map(({ task: { name, schema, queue, attempts } }) => ({
        task: name,
        schema,
        ...(queue === undefined ? {} : { queue }),
        ...(attempts === undefined ? {} : { attempts }),
      }));
    return {
      worker: this.#options.name ?? `js-${uuid().slice(0, 8)}`,
      queues: this.#options.queues,
      tasks: [...this.#tasks.keys()].sort(),
      slots: this.#slots,
      lease: this.#options.lease ?? "30s",
      labels: this.#options.labels ?? {},
      release: this.#options.release ?? "",
      contracts,
    };
  }

  #log(line: string): void {
    (this.#options.log ?? ((one: string) => console.error(`winch: ${one}`)))(line);
  }

  // -- jobs ------------------------------------------------------------------------------------------

  async #claimUntilStopped(isBurst: boolean): Promise<void> {
    let failed = FAILED_CLAIM_MS;
    while (!this.#stop.signal.aborted) {
      const free = Math.min(this.#slots - Math.max(this.#running.size, this.#busy), MOST_IN_CLAIM);
      if (free <= 0 || this.#isQuiet) {
        await new Promise<void>((resolve) => (this.#changed = resolve));
        continue;
      }
      this.#cutClaim = new AbortController();
      try {
        const jobs = await this.#claim(free, isBurst ? 0 : POLL_MS, this.#cutClaim.signal);
        failed = FAILED_CLAIM_MS;
        for (const job of jobs) void this.#run(job);
        if (isBurst && jobs.length === 0) {
          if (this.#running.size === 0) return;
          await new Promise<void>((resolve) => (this.#changed = resolve));
        }
      } catch (error) {
        if (this.#cutClaim.signal.aborted) continue;
        this.#log(`claim: ${text(error)}`);
        const after = error instanceof WinchError ? error.retryAfterMs : 0;
        await pause(after + failed / 2 + (Math.random() * failed) / 2, this.#stop.signal);
        failed = Math.min(failed * 2, GREATEST_FAILED_CLAIM_MS);
      }
    }
  }

  async #claim(most: number, waitMs: number, signal: AbortSignal): Promise<ClaimedJob[]> {
    const token = uuid();
    this.#claiming.add(token);
    try {
      const body = { max: most, wait: `${waitMs}ms`, claim: token };
      // Never repeated: what a lost reply took, a heartbeat lists.
      const options = { patience: 0, wait: waitMs, signal };
      const { jobs } = (await this.#session.ask("/claim", body, options)) as { jobs: ClaimedJob[] };
      for (const job of jobs) {
        const context = new Context(job, {
          note: (ctx, fields) => this.#note(ctx, fields),
          children: (ctx, more, name) => this.#children(ctx, more, name),
        });
        this.#running.set(keyOf(context.ref()), context);
      }
      return jobs;
    } finally {
      this.#claiming.delete(token);
    }
  }

  async #run(job: ClaimedJob): Promise<void> {
    const context = this.#running.get(keyOf(job));
    const known = this.#tasks.get(job.task);
    if (context === undefined) return;
    let isOver = false;
    const over = (end: Record<string, unknown> | null) => {
      if (isOver) return;
      isOver = true;
      if (end === null) this.#ended(context.ref());
      else this.#finisher.add({ ...context.ref(), ...end });
    };
    const clock = this.#limit(context, over);
    let end: Record<string, unknown> | null;
    this.#busy++;
    try {
      if (known === undefined) throw new Stopped("stop"); // the server sends no such job
      const call = async () => known.handler(job.args, context);
      const around = this.#options.around;
      const value = await (around === undefined ? call() : around(context, call));
      end = outcomeOf(context, { value });
    } catch (error) {
      end = outcomeOf(context, { error });
    } finally {
      clock.abort();
      this.#busy--;
      this.#changed();
    }
    over(end);
  }

  /** Stop a handler whose time is over. One that goes on keeps its slot, and what it returns is dropped. */
  #limit(context: Context, over: (end: Record<string, unknown>) => void): AbortController {
    const clock = new AbortController();
    const ms = (context.timeout ?? Infinity) * 1000;
    if (ms <= LONGEST_TIMER_MS) {
      void (async () => {
        await pause(ms, clock.signal);
        if (clock.signal.aborted) return;
        context.stop("timeout");
        await pause(STOP_MS, clock.signal);
        if (clock.signal.aborted) return;
        this.#log(`job ${context.id}: its handler goes on past its timeout`);
        over(timedOut(context));
      })();
    }
    return clock;
  }

  /** The end of a claim has reached the server, or will never do so. */
  #ended(ref: Ref): void {
    this.#running.delete(keyOf(ref));
    this.#changed();
  }

  /** Wait until nothing runs, for so long. */
  async #idle(ms: () => number, hurry?: AbortSignal): Promise<void> {
    const began = performance.now();
    while (this.#running.size > 0 && performance.now() - began < ms() && !hurry?.aborted) await pause(10);
  }

  #lose(): void {
    this.#log("the session has ended; its jobs are another worker's");
    for (const context of this.#running.values()) context.stop("lost");
    this.#running.clear();
    this.#cutClaim.abort(); // it waits for jobs of the session that has ended
    this.#changed();
  }

  // -- what a handler reports --------------------------------------------------------------------------

  async #note(context: Context, fields: Record<string, unknown>): Promise<void> {
    const body = { notes: [{ ...context.ref(), ...fields }] };
    const { answers } = (await this.#session.ask("/notes", body)) as { answers: { answer: string }[] };
    if (answers[0]?.answer === "lost") context.stop("lost");
  }

  async #children(context: Context, jobs: readonly NewJob[], name: string): Promise<string[]> {
    // The server draws their ids from the parent, the name and the position.
    const body = { parent: context.ref(), jobs: jobs.map((job) => this.#client.body(job, context.trace)), name };
    const made = (await this.#session.ask("/children", body)) as { jobs: { id: string }[] };
    return made.jobs.map((one) => one.id);
  }

  // -- the heartbeat -----------------------------------------------------------------------------------

  async #beat(over: AbortSignal): Promise<void> {
    let began = performance.now();
    for (;;) {
      // From the beginning of the last one: with a slow server a lease has as many heartbeats.
      await pause(this.#session.beatEveryMs - (performance.now() - began), over);
      if (over.aborted) return;
      began = performance.now();
      try {
        await this.#beatOnce(over);
      } catch (error) {
        if (!over.aborted) this.#log(`heartbeat: ${text(error)}`);
      }
    }
  }

  async #beatOnce(signal: AbortSignal): Promise<void> {
    const running = [...this.#running.values()].map((context) => context.ref());
    const onTheWay = new Set(this.#claiming);
    const answers = this.#answers.splice(0, MOST_ANSWERS);
    let found: Beat;
    try {
      // One that hangs is given up after half of the lease, so that the next one keeps the jobs.
      const every = this.#session.beatEveryMs;
      const options = { patience: every / 2, limit: 2 * every, signal };
      found = (await this.#session.ask("/heartbeat", { running, answers }, options)) as Beat;
    } catch (error) {
      this.#answers.unshift(...answers);
      throw error;
    }
    for (const ref of found.cancelled) this.#running.get(keyOf(ref))?.stop("cancel");
    for (const ref of found.lost) this.#running.get(keyOf(ref))?.stop("lost");
    const strays = found.unlisted.filter(
      (ref) => !onTheWay.has(ref.token) && !this.#claiming.has(ref.token) && !this.#running.has(keyOf(ref)),
    );
    if (strays.length > 0) {
      const outcomes = strays.map((ref) => ({ ...ref, outcome: "release" }));
      await this.#session.ask("/finish", { outcomes }, { patience: 0 });
    }
    for (const order of found.orders) {
      if (this.#met.has(order.id)) continue;
      this.#met.add(order.id);
      this.#answers.push({ id: order.id, ...this.#obey(order) });
    }
  }

  #obey(order: Order): { state: "done" | "failed"; text: string } {
    switch (order.do) {
      case "quiet":
        this.#isQuiet = true;
        this.#cutClaim.abort();
        break;
      case "resume":
        this.#isQuiet = false;
        this.#changed();
        break;
      case "stop":
      case "drain":
        if (order.grace !== null) this.#graceMs = order.grace * 1000;
        this.stop();
        break;
      default:
        return { state: "failed", text: `this worker does not know ${order.do}` };
    }
    return { state: "done", text: "" };
  }
}

function keyOf(ref: Ref): string {
  return `${ref.id} ${ref.token}`;
}

function text(error: unknown): string {
  return error instanceof WinchError || error instanceof Error ? error.message : String(error);
}
