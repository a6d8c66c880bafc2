import assert from "node:assert/strict";
import http from "node:http";
import https from "node:https";
import net from "node:net";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Client, JobFailed, ResultTimeout, task, WinchError, Worker } from "../dist/index.js";
import { nodeFetch, proxyOf } from "../dist/node.js";
import { startServer } from "./server.mjs";

const SCHEMA = { properties: { n: { type: "integer" } }, required: ["n"] };
const double = task("js.double", { schema: SCHEMA, queue: "js", attempts: 1 });
let server;
let client;

before(async () => {
  server = await startServer();
  client = new Client(server.url, { token: server.token });
});
after(() => server.stop());

async function working(worker, run) {
  const ended = worker.run({ signals: false });
  try {
    return await run();
  } finally {
    worker.stop();
    await ended;
  }
}

/** Until the worker is known, so that its contracts are. */
async function known(job) {
  for (let tries = 0; ; tries++) {
    try {
      return await job();
    } catch (error) {
      if (error.code !== "unknown-task" || tries > 600) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

test("a typed task is published, enqueued and run; wrong arguments are refused with the reason", async () => {
  const lines = [];
  const worker = new Worker(client, { queues: ["js"], lease: "4s", log: (line) => lines.push(line) });
  worker.task(double, async ({ n }) => {
    if (n < 0) throw new RangeError("negative");
    return n * 2;
  });
  await working(worker, async () => {
    const job = await known(() => client.enqueue(double, { n: 21 }));
    assert.equal(await job.result(), 42);
    await assert.rejects(client.enqueue(double, { n: "x" }), (error) => {
      assert.ok(error instanceof WinchError);
      assert.equal(error.code, "invalid");
      assert.match(error.message, /args\.n must be integer, got string/);
      return true;
    });
    const dead = await client.enqueue(double, { n: -1 });
    await assert.rejects(dead.result(), JobFailed);
    const { error } = await dead.get();
    assert.equal(error.type, "RangeError");
    assert.match(error.traceback, /sdk\.test\.mjs/);
  });
  const late = await client.enqueue(double, { n: 1 });
  await assert.rejects(late.result({ timeout: "200ms" }), ResultTimeout);
  assert.deepEqual(lines, []);
});

test("the trace of the caller goes along with an enqueue, unless a job names its own", async () => {
  const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const traced = new Client(server.url, { token: server.token, trace: () => ({ traceparent }) });
  const job = await traced.enqueue(double, { n: 1 }, { headers: { "x-shop": "7" } });
  assert.deepEqual((await job.get()).headers, { traceparent, "x-shop": "7" });
  const own = "00-11111111111111111111111111111111-2222222222222222-01";
  const [other] = await traced.enqueueMany([{ task: double, args: { n: 1 }, headers: { traceparent: own } }]);
  assert.equal((await other.get()).headers.traceparent, own);
});

test("around wraps each handler", async () => {
  const seen = [];
  const worker = new Worker(client, {
    queues: ["around"],
    around: async (ctx, next) => {
      seen.push(`before ${ctx.task}`);
      const value = await next();
      seen.push(`after ${value}`);
      return value;
    },
  });
  worker.task(task("js.around", { schema: {}, queue: "around" }), () => "it");
  await working(worker, async () => {
    const job = await known(() => client.enqueue("js.around"));
    assert.equal(await job.result(), "it");
  });
  assert.deepEqual(seen, ["before js.around", "after it"]);
});

test("the token is in no error and in no description of a client", async () => {
  const gone = new Client("http://127.0.0.1:1", { token: "winch_secret", timeout: "1s" });
  const error = await gone.request("GET", "/jobs", undefined, { patience: 0 }).catch((reason) => reason);
  assert.equal(error.code, "unreachable");
  const { inspect } = await import("node:util");
  for (const text of [String(error), inspect(error), inspect(gone, { showHidden: true }), JSON.stringify(gone)]) {
    assert.doesNotMatch(text, /winch_secret/);
  }
});

test("the address of a request is in no error, whatever the runtime says", async () => {
  const url = "http://127.0.0.1:1/api/v1/sessions/28916b9c-f06a-446a-aafa-0a0e0d87ed5b/claim";
  const said = `error sending request for ${url} (127.0.0.1:1): closed, POST /api/v1/sessions/28916b9c/claim`;
  const fetch = async () => {
    throw new TypeError(said);
  };
  const broken = new Client("http://127.0.0.1:1", { fetch });
  await assert.rejects(broken.request("GET", "/stats", undefined, { patience: 0 }), (error) => {
    assert.equal(error.detail, "no answer from http://127.0.0.1:1: error sending request for … (127.0.0.1:1): closed, POST …");
    return true;
  });
});

test("a wrong address is refused at once", () => {
  for (const url of ["jobs.example.com", "ftp://jobs.example.com", ""]) {
    assert.throws(() => new Client(url), /https:\/\/jobs\.example\.com/);
  }
  assert.throws(() => new Worker(client, { queues: [] }), /needs a queue/);
});

test("a redirect is refused, so the token stays", async () => {
  let came;
  const elsewhere = http.createServer((request, reply) => {
    came = request.headers.authorization;
    reply.end("{}");
  });
  await new Promise((resolve) => elsewhere.listen(0, "127.0.0.1", resolve));
  const first = http.createServer((_, reply) => {
    reply.writeHead(307, { location: `http://127.0.0.1:${elsewhere.address().port}/` }).end();
  });
  await new Promise((resolve) => first.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${first.address().port}`;
  for (const fetch of [undefined, nodeFetch()]) {
    const lured = new Client(url, { token: "winch_secret", ...(fetch ? { fetch } : {}) });
    await assert.rejects(lured.request("GET", "/jobs", undefined, { patience: 0 }), WinchError);
  }
  assert.equal(came, undefined);
  for (const one of [first, elsewhere]) {
    one.closeAllConnections();
    one.close();
  }
});

test("the proxy of the environment, and what goes past it", () => {
  const env = { HTTPS_PROXY: "proxy:3128", http_proxy: "http://other:80", NO_PROXY: "internal.example, .corp, host:8443" };
  assert.equal(proxyOf("https://jobs.example.com", env), "http://proxy:3128");
  assert.equal(proxyOf("http://jobs.example.com", env), "http://other:80");
  for (const url of ["https://internal.example", "https://a.internal.example", "https://x.corp", "https://host:8443"]) {
    assert.equal(proxyOf(url, env), null, url);
  }
  assert.equal(proxyOf("https://host", env), "http://proxy:3128");
  assert.equal(proxyOf("https://notinternal.example", env), "http://proxy:3128");
  assert.equal(proxyOf("https://jobs.example.com", { ...env, NO_PROXY: "*" }), null);
});

test("TLS of a private authority, directly and through a proxy that wants a password", async () => {
  const folder = mkdtempSync(join(tmpdir(), "winch-tls-"));
  const files = { key: join(folder, "key.pem"), cert: join(folder, "cert.pem") };
  const words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"];
  execFileSync("openssl", [...words, "-addext", "subjectAltName=DNS:localhost", "-keyout", files.key, "-out", files.cert], { stdio: "ignore" });
  const [key, cert] = [readFileSync(files.key), readFileSync(files.cert)];
  rmSync(folder, { recursive: true });
  // TLS in front of the real server.
  const behind = new URL(server.url);
  const front = https.createServer({ key, cert }, (request, reply) => {
    const headers = { ...request.headers, host: behind.host };
    const on = http.request({ host: behind.hostname, port: behind.port, method: request.method, path: request.url, headers });
    on.on("response", (came) => came.pipe(reply.writeHead(came.statusCode, came.headers)));
    request.pipe(on);
  });
  await new Promise((resolve) => front.listen(0, "127.0.0.1", resolve));
  const url = `https://localhost:${front.address().port}`;
  const connects = [];
  const proxy = http.createServer();
  proxy.on("connect", (request, socket) => {
    connects.push([request.url, request.headers["proxy-authorization"], request.headers.authorization]);
    const [, port] = request.url.split(":");
    if (request.headers["proxy-authorization"] === undefined) return socket.end("HTTP/1.1 407 No\r\n\r\n");
    const to = net.connect(port, "127.0.0.1", () => socket.write("HTTP/1.1 200 OK\r\n\r\n"));
    to.pipe(socket).pipe(to);
    for (const one of [to, socket]) one.on("error", () => {});
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  const via = `http://user:p%40ss@127.0.0.1:${proxy.address().port}`;
  const made = (options) => new Client(url, { token: server.token, fetch: nodeFetch(options) });
  const ask = (one) => one.request("GET", "/jobs?limit=1", undefined, { patience: 0 });
  const ca = cert.toString();
  try {
    assert.ok((await ask(made({ ca, proxy: null }))).jobs);
    await assert.rejects(ask(made({ proxy: null })), /self-signed|SELF_SIGNED/);
    assert.ok((await ask(made({ ca, proxy: via }))).jobs);
    assert.ok((await ask(made({ ca, proxy: via }))).jobs);
    await assert.rejects(ask(made({ ca, proxy: via.replace("user:p%40ss@", "") })), /407/);
    await assert.rejects(ask(made({ proxy: via })), /self-signed|SELF_SIGNED/);
  } finally {
    for (const one of [front, proxy]) {
      one.closeAllConnections();
      one.close();
    }
  }
  assert.deepEqual(connects[0], [url.replace("https://", ""), `Basic ${Buffer.from("user:p@ss").toString("base64")}`, undefined]);
});

test("plain HTTP through a proxy of the environment", async () => {
  const seen = [];
  const proxy = http.createServer((request, reply) => {
    seen.push(request.url);
    const on = http.request(request.url, { method: request.method, headers: request.headers });
    on.on("response", (came) => came.pipe(reply.writeHead(came.statusCode, came.headers)));
    request.pipe(on);
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  process.env.http_proxy = `127.0.0.1:${proxy.address().port}`;
  try {
    const behind = new Client(server.url, { token: server.token });
    const job = await known(() => behind.enqueue(double, { n: 3 }));
    assert.equal((await job.get()).state, "ready");
  } finally {
    delete process.env.http_proxy;
    proxy.closeAllConnections();
    proxy.close();
  }
  assert.ok(seen[0].startsWith(`${server.url}/api/v1/jobs`), seen[0]);
});
