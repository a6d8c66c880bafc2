import type { Duration } from "./duration.js";

/** Arguments of a job: JSON, by name. */
export type Args = { readonly [name: string]: unknown };

/** A JSON Schema of the arguments of a task. */
export type JsonSchema = { readonly [keyword: string]: unknown };

export interface TaskOptions {
  /** The JSON Schema of the arguments. With it, a worker publishes the task, so that every producer can enqueue it. */
  readonly schema?: JsonSchema;
  /** The queue of its jobs. */
  readonly queue?: string;
  /** How many attempts a job has. */
  readonly attempts?: number;
}

/** A task: its name, and the types of its arguments and of its result. */
export interface Task<A extends Args = Args, R = unknown> extends TaskOptions {
  readonly name: string;
  /** Only for the compiler. */
  readonly types?: { readonly args: A; readonly result: R };
}

/**
 * Declare a task: `const mail = task<{ order: number }, string>("shop.mail", { queue: "mail" })`.
 *
 * Its jobs are enqueued with `client.enqueue(mail, { order: 7 })`, and run by `worker.task(mail, handler)` or by a
 * worker in another language.
 */
export function task<A extends Args = Args, R = unknown>(name: string, options: TaskOptions = {}): Task<A, R> {
  return { name, ...options };
}

export interface EnqueueOptions {
  queue?: string;
  priority?: number | "critical" | "high" | "default" | "low";
  delay?: Duration;
  /** A moment, as a Date or in ISO 8601. */
  run_at?: Date | string;
  expires?: Duration;
  timeout?: Duration;
  /** At most one job with this key is not final. */
  unique?: string;
  /** Jobs with the same key run one after another. */
  fifo?: string;
  tenant?: string;
  tags?: readonly string[];
  headers?: Readonly<Record<string, string>>;
  /** A UUID: the same id is the same job. */
  id?: string;
}

/** One of many jobs to enqueue. */
export interface NewJob extends EnqueueOptions {
  task: string | Task<any, any>;
  args?: Args;
}

export type JobState =
  | "scheduled" | "blocked" | "ready" | "running" | "retrying" | "completed" | "cancelled" | "dead";

/** A job as the server knows it. */
export interface JobInfo {
  id: string;
  task: string;
  state: JobState;
  queue: string;
  priority: number;
  tenant: string | null;
  args: unknown;
  tags: string[];
  headers: Record<string, string>;
  attempt: number;
  max_attempts: number | null;
  created_at: string;
  run_at: string;
  claimed_at: string | null;
  finished_at: string | null;
  progress: unknown;
  result: unknown;
  log: string | null;
  error: { type: string; message: string; traceback: string | null } | null;
  reason: string | null;
  [more: string]: unknown;
}
