import type { Client, RequestOptions } from "./client.js";
import { WinchError } from "./errors.js";
import { uuid } from "./random.js";

/** A claim: a job and the token that it runs under. */
export interface Ref {
  id: string;
  token: string;
}

export interface Order {
  id: string;
  do: string;
  by: string;
  /** In seconds. */
  grace: number | null;
}

export interface Beat {
  cancelled: Ref[];
  lost: Ref[];
  unlisted: Ref[];
  orders: Order[];
}

export interface Answer {
  id: string;
  answer: "took" | "already" | "lost";
}

/**
 * A worker's session: it holds the lease of all jobs that the worker runs. One that has ended is replaced; what ran in it
 * is lost. The key is a secret and never part of a message.
 */
export class Session {
  #key = "";
  #registering: Promise<void> | null = null;
  isOver = false;
  beatEveryMs = 1000;

  constructor(
    private readonly client: Client,
    private readonly about: () => Record<string, unknown>,
    private readonly lost: () => void,
  ) {}

  async begin(): Promise<void> {
    await this.#register("");
  }

  /** Register, unless that was done since `lost` was the key. */
  async #register(lost: string): Promise<void> {
    if (this.#key !== lost) return;
    this.#registering ??= (async () => {
      try {
        if (lost !== "") this.lost();
        const key = uuid();
        const made = (await this.client.request("POST", "/sessions", { ...this.about(), key })) as { beat_seconds: number };
        this.beatEveryMs = made.beat_seconds * 1000;
        this.#key = key;
      } finally {
        this.#registering = null;
      }
    })();
    await this.#registering;
  }

  /** A request about the session. When it has ended, another one is registered, and the request fails. */
  async ask(path: string, body: unknown, options: RequestOptions = {}): Promise<unknown> {
    await this.#registering;
    const key = this.#key;
    try {
      return await this.client.request("POST", `/sessions/${key}${path}`, body, options);
    } catch (error) {
      if (isEnded(error) && !this.isOver) await this.#register(key);
      throw error;
    }
  }

  async end(): Promise<void> {
    if (this.#key === "") return; // it has never begun
    try {
      await this.client.request("DELETE", `/sessions/${this.#key}`, undefined, { patience: 2000 });
    } catch (error) {
      if (!isEnded(error)) throw error;
    } finally {
      this.#key = "";
    }
  }
}

export function isEnded(error: unknown): boolean {
  return error instanceof WinchError && error.code === "session-ended";
}
