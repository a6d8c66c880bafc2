import type { Duration } from "./duration.js";

/** What a handler may throw or return to choose how its job goes on. */
export abstract class Outcome extends Error {
  abstract end(): Record<string, unknown>;
}

/** Run the next attempt after this delay. This counts as a failed attempt. */
export class RetryAfter extends Outcome {
  override readonly name = "RetryAfter";
  constructor(
    readonly delay: Duration,
    readonly reason?: string,
  ) {
    super(reason ?? `retry after ${delay}`);
  }
  end() {
    return { outcome: "retry", delay: this.delay, reason: this.reason ?? null };
  }
}

/** Run the job again after this delay. This costs no attempt. */
export class Snooze extends Outcome {
  override readonly name = "Snooze";
  constructor(
    readonly delay: Duration,
    readonly reason?: string,
  ) {
    super(reason ?? `snooze for ${delay}`);
  }
  end() {
    return { outcome: "snooze", delay: this.delay, reason: this.reason ?? null };
  }
}

/** End the job as dead, without a retry. */
export class Discard extends Outcome {
  override readonly name = "Discard";
  constructor(readonly reason?: string) {
    super(reason ?? "discarded by the task");
  }
  end() {
    return { outcome: "discard", reason: this.reason ?? null };
  }
}

/** End the job as cancelled. */
export class Cancel extends Outcome {
  override readonly name = "Cancel";
  constructor(readonly reason?: string) {
    super(reason ?? "cancelled by the task");
  }
  end() {
    return { outcome: "cancel", reason: this.reason ?? null };
  }
}

/** Why a handler should stop: a cancel was requested, the claim is another worker's, its worker stops, or its time is over. */
export type StopReason = "cancel" | "lost" | "stop" | "timeout";

const WHY: Record<StopReason, string> = {
  cancel: "the job was cancelled",
  lost: "the claim is no longer this worker's",
  stop: "the worker stops",
  timeout: "the job takes longer than its timeout",
};

/** The reason of `ctx.signal` when it is aborted, and what `ctx.check()` and `ctx.sleep()` throw then. Let it pass. */
export class Stopped extends Error {
  override readonly name = "Stopped";
  constructor(readonly by: StopReason) {
    super(WHY[by]);
  }
}
