/** A duration as Winch writes it: `250ms`, `30s`, `5m`, `2h`, `1d`. */
export type Duration = `${number}${"ms" | "s" | "m" | "h" | "d"}`;

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** The milliseconds of a duration. */
export function milliseconds(duration: Duration): number {
  const found = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(duration);
  if (found === null) throw new TypeError(`a duration is like 250ms, 30s, 5m, 2h or 1d, got ${duration}`);
  return Number(found[1]) * UNITS[found[2]!]!;
}

/** Resolves after so many milliseconds, or as soon as the signal is aborted. Never rejects. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });
}
