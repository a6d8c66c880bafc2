import type { Context } from "./context.js";
import { pause } from "./duration.js";
import { WinchError } from "./errors.js";
import { Outcome, Stopped } from "./outcomes.js";
import type { Answer, Ref, Session } from "./session.js";

const MOST_IN_BATCH = 200;
const FOREVER_MS = 24 * 3_600_000;

export type End = Ref & Record<string, unknown>;

/** How a job ends, from what its handler returned or threw; null where it is no longer this worker's to end. */
export function outcomeOf(context: Context, came: { value: unknown } | { error: unknown }): Record<string, unknown> | null {
  if ("value" in came) {
    if (came.value instanceof Outcome) return came.value.end();
    return { outcome: "complete", result: came.value ?? null };
  }
  const { error } = came;
  if (error instanceof Outcome) return error.end();
  const { signal } = context;
  // What was given the signal throws its reason, or an AbortError.
  const isStop = signal.aborted && (error instanceof Stopped || (error as Error | null)?.name === "AbortError");
  if (isStop) {
    if (context.stoppedBy === "cancel") return { outcome: "cancel", reason: "cancelled while it ran" };
    if (context.stoppedBy === "lost") return null;
    if (context.stoppedBy === "timeout") return timedOut(context);
    return { outcome: "release", has_started: true };
  }
  return { outcome: "fail", error: described(error) };
}

/** How a job ends whose time is over. */
export function timedOut(context: Context): Record<string, unknown> {
  const message = `took longer than its timeout of ${context.timeout} s`;
  return { outcome: "fail", error: { type: "winch.JobTimeout", message } };
}

function described(error: unknown): Record<string, unknown> {
  if (!(error instanceof Error)) return { type: "Error", message: String(error) };
  const type = error.name === "Error" ? error.constructor.name : error.name;
  return { type: type || "Error", message: error.message, traceback: error.stack ?? null };
}

/** Sends how jobs ended, in batches, as often as needed: a repeat changes nothing. */
export class Finisher {
  #waiting: End[] = [];
  #sending: Promise<void> | null = null;
  #abort = new AbortController();

  constructor(
    private readonly session: Session,
    private readonly log: (line: string) => void,
    private readonly ended: (ref: Ref) => void,
  ) {}

  add(end: End): void {
    this.#waiting.push(end);
    this.#sending ??= this.#send();
  }

  /** Send what is left, for so long. */
  async close(ms: number): Promise<void> {
    const timer = new AbortController();
    await Promise.race([this.#sending, pause(ms, timer.signal)]);
    timer.abort();
    this.#abort.abort();
    await this.#sending;
    this.#abort = new AbortController();
  }

  async #send(): Promise<void> {
    await Promise.resolve(); // what ends in this turn goes along
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0, MOST_IN_BATCH);
      await this.#sendBatch(batch);
    }
    this.#sending = null;
  }

  async #sendBatch(batch: End[]): Promise<void> {
    const first = batch[0]!;
    try {
      const options = { patience: FOREVER_MS, signal: this.#abort.signal };
      const reply = (await this.session.ask("/finish", { outcomes: batch }, options)) as { answers: Answer[] };
      for (const { id, answer } of reply.answers) {
        if (answer === "lost") this.log(`job ${id}: its claim had ended; the result is dropped`);
      }
    } catch (error) {
      const status = error instanceof WinchError ? error.status : -1; // -1: a value that is no JSON
      if (batch.length > 1 && status !== 0 && status !== 404) {
        for (const one of batch) await this.#sendBatch([one]); // one that is refused must not keep the others
        return;
      }
      const message = error instanceof Error ? error.message : String(error);
      this.log(`an end was refused: ${message}`);
      if (first["outcome"] === "complete" && [-1, 413, 422].includes(status)) {
        const why = { type: error instanceof Error ? error.name : "Error", message };
        await this.#sendBatch([{ id: first.id, token: first.token, outcome: "fail", error: why }]);
        return;
      }
    }
    for (const one of batch) this.ended(one);
  }
}
