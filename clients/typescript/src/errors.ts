/** A request that the server refused, or that found no server: then `status` is 0 and `code` is `unreachable`. */
export class WinchError extends Error {
  override readonly name: string = "WinchError";
  /** How many milliseconds the server wants the client to wait (`Retry-After`). */
  retryAfterMs = 0;

  /**
   * @param status the status of the reply
   * @param code what went wrong, as a word: `invalid`, `queue-full`, `lost-claim`, …
   * @param detail what happened and what to do
   */
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
  ) {
    super(status === 0 ? detail : `${status} ${code}: ${detail}`);
  }
}

/** A job that ended without a result: it is dead or cancelled. */
export class JobFailed extends WinchError {
  override readonly name = "JobFailed";
}

/** Waiting for a result took too long; the job goes on. */
export class ResultTimeout extends WinchError {
  override readonly name = "ResultTimeout";
}
