import * as http from "node:http";
import * as https from "node:https";
import { isIP } from "node:net";
import type { Duplex } from "node:stream";
import * as tls from "node:tls";

import type { Fetch } from "./transport.js";

/** How a server is reached from Node. */
export interface NodeOptions {
  /** Certificates of a private authority, in PEM. */
  ca?: string | readonly string[];
  /** A certificate and a key of this client, in PEM. */
  cert?: string;
  key?: string;
  /** A proxy like `http://user:password@proxy:3128`. Without it, those of the environment; `null`: none. */
  proxy?: string | null;
}

/** The proxy that the environment names for this address, as everywhere: `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`. */
export function proxyOf(url: string, env: Readonly<Record<string, string | undefined>>): string | null {
  const { protocol, hostname, port } = new URL(url);
  const scheme = protocol.replace(":", "");
  const given = (name: string) => env[name] || env[name.toUpperCase()] || "";
  const proxy = given(`${scheme}_proxy`);
  if (proxy === "") return null;
  for (const one of given("no_proxy").split(",").map((text) => text.trim().toLowerCase())) {
    if (one === "*") return null;
    const [name, only] = one.replace(/^\*?\./, "").split(":");
    const isPort = only === undefined || only === (port || (scheme === "https" ? "443" : "80"));
    if (name && isPort && (hostname === name || hostname.endsWith(`.${name}`))) return null;
  }
  return proxy.includes("://") ? proxy : `http://${proxy}`;
}

/** A `fetch` for `new Client(url, { fetch })` that knows private authorities, client certificates and proxies. */
export function nodeFetch(options: NodeOptions = {}): Fetch {
  const { ca, cert, key } = options;
  const secure = {
    ...(ca === undefined ? {} : { ca: typeof ca === "string" ? ca : [...ca] }),
    ...(cert === undefined ? {} : { cert }),
    ...(key === undefined ? {} : { key }),
  };
  const agents = { http: new http.Agent({ keepAlive: true }), https: new https.Agent({ keepAlive: true, ...secure }) };
  const tunnels = new Map<string, https.Agent>();
  return async (url, init) => {
    const target = new URL(url);
    const isSecure = target.protocol === "https:";
    const proxy = options.proxy === undefined ? proxyOf(url, process.env) : options.proxy;
    if (proxy === null) {
      const agent = isSecure ? agents.https : agents.http;
      return send(isSecure ? https.request(target, { ...shape(init), agent }) : http.request(target, { ...shape(init), agent }), init.body);
    }
    const via = new URL(proxy);
    if (isSecure) {
      const known = tunnels.get(proxy) ?? new Tunnel(via, secure);
      tunnels.set(proxy, known);
      return send(https.request(target, { ...shape(init), agent: known }), init.body);
    }
    const headers = { ...init.headers, host: target.host, ...authorization(via) };
    const request = http.request(via, { ...shape(init), headers, path: url, agent: agents.http });
    return send(request, init.body);
  };
}

function shape(init: Parameters<Fetch>[1]): http.RequestOptions {
  const length = init.body === undefined ? {} : { "content-length": String(Buffer.byteLength(init.body)) };
  return { method: init.method, headers: { ...init.headers, ...length }, signal: init.signal };
}

function authorization(via: URL): Record<string, string> {
  if (via.username === "") return {};
  const pair = `${decodeURIComponent(via.username)}:${decodeURIComponent(via.password)}`;
  return { "proxy-authorization": `Basic ${Buffer.from(pair).toString("base64")}` };
}

function send(request: http.ClientRequest, body: string | undefined): ReturnType<Fetch> {
  return new Promise((resolve, reject) => {
    request.on("error", reject);
    request.on("response", (reply) => {
      const status = reply.statusCode ?? 0;
      if (status >= 300 && status < 400 && reply.headers.location !== undefined) {
        reply.resume();
        return reject(new Error("the server redirects"));
      }
      const get = (name: string) => {
        const found = reply.headers[name.toLowerCase()];
        return found === undefined ? null : String(found);
      };
      resolve({ status, headers: { get }, text: () => read(reply) });
    });
    request.end(body);
  });
}

async function read(reply: http.IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  for await (const part of reply) parts.push(part as Buffer);
  return Buffer.concat(parts).toString("utf8");
}

/** Connections to a server through a proxy's CONNECT; the TLS of the server begins behind it. */
class Tunnel extends https.Agent {
  readonly #via: URL;
  readonly #secure: tls.ConnectionOptions;

  constructor(via: URL, secure: tls.ConnectionOptions) {
    super({ keepAlive: true });
    this.#via = via;
    this.#secure = secure;
  }

  override createConnection(
    options: https.RequestOptions,
    done: (error: Error | null, stream: Duplex) => void = () => {},
  ): undefined {
    const failed = (error: Error) => done(error, undefined as unknown as Duplex);
    const { host, port } = options;
    const open = this.#via.protocol === "https:" ? https.request : http.request;
    const path = `${host}:${port ?? 443}`;
    const connect = open(this.#via, { method: "CONNECT", path, headers: { host: path, ...authorization(this.#via) } });
    connect.on("error", failed);
    connect.on("connect", (reply, socket) => {
      if (reply.statusCode !== 200) {
        socket.destroy();
        return failed(new Error(`the proxy answers ${reply.statusCode}`));
      }
      const servername = options.servername ?? host ?? "";
      const secured = tls.connect({ ...this.#secure, socket, ...(isIP(servername) === 0 ? { servername } : {}) });
      secured.on("error", failed);
      secured.on("secureConnect", () => done(null, secured));
    });
    connect.end();
  }
}
