// Node 18 has no global `crypto`; everything else has.
const source = globalThis.crypto ?? (await import("node:crypto")).webcrypto;

/** A random UUID: 122 bits that nobody can guess. */
export function uuid(): string {
  return source.randomUUID();
}
