import type { Duration } from "./duration.js";
import { milliseconds, pause } from "./duration.js";
import { type StopReason, Stopped } from "./outcomes.js";
import type { NewJob } from "./task.js";

/** @internal A claimed job, as the server sends it. */
export interface ClaimedJob {
  id: string;
  task: string;
  version: number;
  args: Record<string, unknown>;
  queue: string;
  attempt: number;
  token: string;
  fence: number;
  created_at: string;
  expires_at: string | null;
  headers: Record<string, string>;
  checkpoint: unknown;
  input: unknown;
  timeout_seconds?: number | null;
}

/** @internal What a context needs of its worker. */
export interface Reports {
  note(context: Context, fields: Record<string, unknown>): Promise<void>;
  children(context: Context, jobs: readonly NewJob[], name: string): Promise<string[]>;
}

/** The job that a handler runs. */
export class Context {
  readonly id: string;
  readonly task: string;
  readonly queue: string;
  /** From 1. */
  readonly attempt: number;
  /** Grows with each claim of the job: hand it to other systems, which then refuse a claim that has ended. */
  readonly fence: number;
  readonly createdAt: Date;
  readonly headers: Readonly<Record<string, string>>;
  /** What the last attempt stored with `checkpoint`. */
  readonly lastCheckpoint: unknown;
  /** In a flow: the result of the job before this one, or the list of results of several. */
  readonly input: unknown;
  /** How many seconds the handler may run; null: no limit. */
  readonly timeout: number | null;
  /** Aborted when the handler should stop, with Stopped as its reason: give it to `fetch` and the like. */
  readonly signal: AbortSignal;

  readonly #abort = new AbortController();
  readonly #reports: Reports;
  readonly #token: string;

  /** @internal */
  constructor(job: ClaimedJob, reports: Reports) {
    this.id = job.id;
    this.task = job.task;
    this.queue = job.queue;
    this.attempt = job.attempt;
    this.fence = job.fence;
    this.createdAt = new Date(job.created_at);
    this.headers = job.headers;
    this.lastCheckpoint = job.checkpoint;
    this.input = job.input;
    this.timeout = job.timeout_seconds ?? null;
    this.signal = this.#abort.signal;
    this.#reports = reports;
    this.#token = job.token;
  }

  /** The W3C trace that the job belongs to; children get it by themselves. */
  get trace(): Record<string, string> {
    const found: Record<string, string> = {};
    for (const name of ["traceparent", "tracestate"]) {
      const value = this.headers[name];
      if (value !== undefined) found[name] = value;
    }
    return found;
  }

  /** Why the handler should stop, or null. */
  get stoppedBy(): StopReason | null {
    return this.signal.aborted ? (this.signal.reason as Stopped).by : null;
  }

  /** Throw Stopped if the handler should stop. */
  check(): void {
    this.signal.throwIfAborted();
  }

  /** Wait; throws Stopped as soon as the handler should stop. */
  async sleep(duration: Duration): Promise<void> {
    await pause(milliseconds(duration), this.signal);
    this.check();
  }

  /** Report progress: any JSON data. */
  async progress(value: unknown): Promise<void> {
    await this.#reports.note(this, { progress: value });
  }

  /** Store what the next attempt finds in `lastCheckpoint`. */
  async checkpoint(value: unknown): Promise<void> {
    await this.#reports.note(this, { checkpoint: value });
  }

  /** Add a line to the job's log. */
  async log(line: string): Promise<void> {
    await this.#reports.note(this, { log: line });
  }

  /** Enqueue children; a repeat and a later attempt store none of them twice. `name` tells apart several calls. */
  async enqueue(jobs: readonly NewJob[], name = ""): Promise<string[]> {
    return this.#reports.children(this, jobs, name);
  }

  /** @internal The proof of the claim. */
  ref(): { id: string; token: string } {
    return { id: this.id, token: this.#token };
  }

  /** @internal */
  stop(by: StopReason): void {
    if (!this.signal.aborted) this.#abort.abort(new Stopped(by));
  }
}
