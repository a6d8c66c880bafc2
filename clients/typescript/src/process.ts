interface Runtime {
  process?: {
    on?(name: string, run: () => void): void;
    off?(name: string, run: () => void): void;
  };
  Deno?: { addSignalListener(name: string, run: () => void): void; removeSignalListener(name: string, run: () => void): void };
}

const SIGNALS = ["SIGTERM", "SIGINT"];

/** Call `first` at the first signal to stop, and `second` at the second. Returns how to listen no more. */
export function stopOnSignals(first: () => void, second: () => void): () => void {
  let count = 0;
  const run = () => (count++ === 0 ? first() : second());
  const { process, Deno } = globalThis as Runtime;
  if (Deno !== undefined) {
    for (const name of SIGNALS) Deno.addSignalListener(name, run);
    return () => SIGNALS.forEach((name) => Deno.removeSignalListener(name, run));
  }
  for (const name of SIGNALS) process?.on?.(name, run);
  return () => SIGNALS.forEach((name) => process?.off?.(name, run));
}
