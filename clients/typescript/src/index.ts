export { Client, type ClientOptions, Job } from "./client.js";
export { Context } from "./context.js";
export type { Duration } from "./duration.js";
export { JobFailed, ResultTimeout, WinchError } from "./errors.js";
export { Cancel, Discard, Outcome, RetryAfter, Snooze, type StopReason, Stopped } from "./outcomes.js";
export {
  type Args,
  type EnqueueOptions,
  type JobInfo,
  type JobState,
  type JsonSchema,
  type NewJob,
  type Task,
  task,
  type TaskOptions,
} from "./task.js";
export type { Fetch } from "./transport.js";
export { type Handler, type RunOptions, Worker, type WorkerOptions } from "./worker.js";
