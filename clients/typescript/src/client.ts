import { type Duration, milliseconds, pause } from "./duration.js";
import { JobFailed, ResultTimeout, WinchError } from "./errors.js";
import { uuid } from "./random.js";
import type { Args, EnqueueOptions, JobInfo, NewJob, Task } from "./task.js";
import { defaultFetch, type Fetch } from "./transport.js";

const PREFIX = "/api/v1";
// Before the second try, doubled for each further one up to the greatest. Each pause is drawn from the whole range, so
// that many clients do not come back at the same moment.
const FIRST_PAUSE_MS = 100;
const GREATEST_PAUSE_MS = 5000;
const PATIENCE_MS = 30_000;
const AGAIN = new Set([429, 502, 503, 504]);

export interface ClientOptions {
  /** A token of the server, like `winch_…`. */
  token?: string;
  /** How long one request may take. */
  timeout?: Duration;
  /** In place of the runtime's `fetch`: `nodeFetch({ ca, proxy })` of `winch-jobs/node`, for instance. */
  fetch?: Fetch;
  /** The headers of the current trace (`traceparent`, `tracestate`), asked for with each enqueue. */
  trace?: () => Readonly<Record<string, string>>;
}

/** @internal */
export interface RequestOptions {
  /** For how many milliseconds the request is repeated while no server answers; 0: never. */
  patience?: number;
  /** How many milliseconds the server may take on purpose. */
  wait?: number;
  /** How many milliseconds one try may take, where that is less than the timeout of the client. */
  limit?: number;
  /** Ends the request, and all repeats. */
  signal?: AbortSignal;
}

/** A server and the token for it. */
export class Client {
  readonly #base: string;
  readonly #host: string;
  readonly #token: string | undefined;
  readonly #timeout: number;
  readonly #trace: () => Readonly<Record<string, string>>;
  #fetch: Fetch | undefined;

  constructor(url: string, options: ClientOptions = {}) {
    const parsed = safeUrl(url);
    if (parsed === null || !/^https?:$/.test(parsed.protocol)) {
      throw new TypeError("the address of a server is like https://jobs.example.com");
    }
    this.#base = `${parsed.origin}${parsed.pathname.replace(/\/+$/, "")}${PREFIX}`;
    this.#host = parsed.origin;
    this.#token = options.token;
    this.#timeout = milliseconds(options.timeout ?? "30s");
    this.#fetch = options.fetch;
    this.#trace = options.trace ?? (() => ({}));
  }

  /** Store a job. A try that may have worked is repeated with the same id, so there is one job. */
  async enqueue<A extends Args, R = unknown>(
    task: string | Task<A, R>,
    args: NoInfer<A> = {} as A,
    options: EnqueueOptions = {},
  ): Promise<Job<R>> {
    const body = { id: uuid(), ...this.body({ ...options, task, args }) };
    const made = (await this.request("POST", "/jobs", body)) as { id: string };
    return new Job<R>(this, made.id);
  }

  /** Store many jobs in one request; all are checked before the first is stored. */
  async enqueueMany(jobs: readonly NewJob[]): Promise<Job[]> {
    const body = { jobs: jobs.map((job) => ({ id: uuid(), ...this.body(job) })) };
    const made = (await this.request("POST", "/jobs:bulk", body)) as { jobs: { id: string }[] };
    return made.jobs.map((one) => new Job(this, one.id));
  }

  /** The handle of a job, without a request. */
  job<R = unknown>(id: string): Job<R> {
    return new Job<R>(this, id);
  }

  /** @internal The body of a new job. */
  body(job: NewJob, trace: Readonly<Record<string, string>> = this.#trace()): Record<string, unknown> {
    const { task, args, run_at, headers, ...rest } = job;
    const own = typeof task === "string" ? {} : task.queue === undefined ? {} : { queue: task.queue };
    const all = headers !== undefined && "traceparent" in headers ? headers : { ...trace, ...headers };
    return {
      ...own,
      ...rest,
      task: typeof task === "string" ? task : task.name,
      args: args ?? {},
      ...(run_at === undefined ? {} : { run_at: run_at instanceof Date ? run_at.toISOString() : run_at }),
      ...(Object.keys(all).length === 0 ? {} : { headers: all }),
    };
  }

  /** @internal One request and the data of its reply, repeated with the same body while no server answers. */
  async request(method: string, path: string, body?: unknown, options: RequestOptions = {}): Promise<unknown> {
    const until = performance.now() + (options.patience ?? PATIENCE_MS);
    const text = body === undefined ? undefined : JSON.stringify(body);
    let greatest = FIRST_PAUSE_MS;
    for (;;) {
      const { error, data } = await this.#once(method, path, text, options);
      if (error === undefined) return data;
      const mayRepeat = error.status === 0 || AGAIN.has(error.status);
      const delay = error.retryAfterMs + Math.random() * greatest;
      if (!mayRepeat || performance.now() + delay > until || options.signal?.aborted) throw error;
      await pause(delay, options.signal);
      if (options.signal?.aborted) throw error;
      greatest = Math.min(greatest * 2, GREATEST_PAUSE_MS);
    }
  }

  async #once(method: string, path: string, body: string | undefined, options: RequestOptions): Promise<Reply> {
    this.#fetch ??= await defaultFetch(this.#host);
    const headers: Record<string, string> = { accept: "application/json" };
    if (this.#token !== undefined) headers["authorization"] = `Bearer ${this.#token}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const abort = new AbortController();
    const end = () => abort.abort();
    if (options.signal?.aborted) end();
    options.signal?.addEventListener("abort", end);
    const timer = setTimeout(end, Math.min(this.#timeout, options.limit ?? Infinity) + (options.wait ?? 0));
    try {
      // A redirect could take the token elsewhere.
      const init = { method, headers, signal: abort.signal, redirect: "error" as const };
      const reply = await this.#fetch(`${this.#base}${path}`, body === undefined ? init : { ...init, body });
      const data = parsed(await reply.text(), reply.status);
      if (reply.status < 300) return { data };
      const problem = data as { code?: unknown; detail?: unknown };
      const after = reply.headers.get("retry-after") ?? "";
      const error = new WinchError(reply.status, String(problem.code ?? ""), String(problem.detail ?? ""));
      if (/^\d+$/.test(after)) error.retryAfterMs = Number(after) * 1000;
      return { error };
    } catch (error) {
      return { error: new WinchError(0, "unreachable", `no answer from ${this.#host}: ${why(error)}`) };
    } finally {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", end);
    }
  }
}

/** The handle of a job. */
export class Job<R = unknown> {
  constructor(
    private readonly client: Client,
    readonly id: string,
  ) {}

  /** The job as the server knows it. */
  async get(): Promise<JobInfo> {
    return (await this.client.request("GET", this.#path)) as JobInfo;
  }

  /** Cancel it; if it runs, its handler is asked to stop. */
  async cancel(reason?: string): Promise<void> {
    await this.client.request("POST", `${this.#path}/cancel`, { reason: reason ?? null });
  }

  /** Make a job that failed, died or was cancelled ready now. */
  async retry(): Promise<void> {
    await this.client.request("POST", `${this.#path}/retry`, {});
  }

  /** What it returned, once it has. Throws JobFailed for a job that is dead or cancelled, and ResultTimeout. */
  async result(options: { timeout?: Duration; signal?: AbortSignal } = {}): Promise<R> {
    const timeout = options.timeout ?? "60s";
    const until = performance.now() + milliseconds(timeout);
    for (let wait = 50; ; wait = Math.min(wait * 2, 1000)) {
      const found = (await this.client.request("GET", `${this.#path}/result`, undefined, {
        patience: Math.max(until - performance.now(), 0),
        ...(options.signal === undefined ? {} : { signal: options.signal }),
      })) as { state: string; result: R; error: { message: string } | null };
      if (found.state === "completed") return found.result;
      if (found.state === "dead" || found.state === "cancelled") {
        throw new JobFailed(200, found.state, `job ${this.id} is ${found.state}: ${found.error?.message ?? ""}`);
      }
      if (performance.now() + wait > until) {
        throw new ResultTimeout(0, "timeout", `job ${this.id} is ${found.state} after ${timeout}`);
      }
      await pause(wait, options.signal);
      options.signal?.throwIfAborted();
    }
  }

  get #path(): string {
    return `/jobs/${encodeURIComponent(this.id)}`;
  }
}

interface Reply {
  data?: unknown;
  error?: WinchError;
}

function safeUrl(url: string): URL | null {
  try {
    return new URL(url);
  } catch {
    return null;
  }
}

function parsed(text: string, status: number): unknown {
  if (text === "") return {};
  try {
    return JSON.parse(text);
  } catch {
    return { detail: `the reply is not JSON (${status})` };
  }
}

/** What a failed fetch says of its cause, without addresses: that of a request has the key of a session, and Deno names it. */
function why(error: unknown): string {
  return cause(error).replace(/[a-z]+:\/\/\S+|\S*\/sessions\/\S*/gi, "…");
}

function cause(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { cause } = error;
  if (cause instanceof Error) return (cause as { code?: string }).code ?? cause.message;
  return error.name === "AbortError" ? "it took too long, or was given up" : error.message;
}
