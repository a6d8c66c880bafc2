/** What a client needs of `fetch`. */
export type Fetch = (
  url: string,
  init: {
    method: string;
    headers: Record<string, string>;
    signal: AbortSignal;
    redirect: "error";
    body?: string;
  },
) => Promise<{ status: number; headers: { get(name: string): string | null }; text(): Promise<string> }>;

interface Runtime {
  process?: { versions?: { node?: string; bun?: string }; env?: Record<string, string | undefined> };
  Deno?: unknown;
}

/**
 * The runtime's `fetch`. That of Node knows no proxies before Node 24, so there a server behind one of the environment
 * (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`) is reached through `node:http`. Deno and Bun read them themselves.
 */
export async function defaultFetch(origin: string): Promise<Fetch> {
  const { process, Deno } = globalThis as Runtime;
  const isNode = process?.versions?.node !== undefined && process.versions.bun === undefined && Deno === undefined;
  if (isNode && Object.keys(process.env ?? {}).some((name) => /^https?_proxy$/i.test(name))) {
    const { nodeFetch, proxyOf } = await import("./node.js");
    if (proxyOf(origin, process.env ?? {}) !== null) return nodeFetch();
  }
  return (url, init) => fetch(url, init);
}
