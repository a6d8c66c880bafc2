// The runner of this SDK for the scenarios: ../../scenarios/README.md documents what it reads and writes.
import { createInterface } from "node:readline";

import { Cancel, Client, Discard, RetryAfter, Snooze, Stopped, Worker, WinchError, task } from "../dist/index.js";

const write = (document) => process.stdout.write(`${JSON.stringify(document)}\n`);
const clients = new Map();
const workers = new Map();

const resolved = (value, facts) => {
  if (Array.isArray(value)) return value.map((one) => resolved(one, facts));
  if (value === null || typeof value !== "object") return value;
  const names = Object.keys(value);
  if (names.length === 1 && names[0] === "$") {
    return value.$.split(".").reduce((found, name) => found?.[name] ?? null, facts);
  }
  return Object.fromEntries(names.map((name) => [name, resolved(value[name], facts)]));
};

const outcome = (verb, given) => {
  if (verb === "retry") return new RetryAfter(given.delay, given.reason);
  if (verb === "snooze") return new Snooze(given.delay, given.reason);
  if (verb === "discard") return new Discard(given.reason);
  if (verb === "cancel") return new Cancel(given.reason);
  return Object.assign(new Error(given.message), { name: given.type });
};

const milliseconds = (duration) => {
  const [, number, unit] = /^(\d+)(ms|s|m|h)$/.exec(duration);
  return Number(number) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[unit];
};

async function act(ctx, actions, facts, about, value = null) {
  for (const action of actions) {
    const [[verb, raw]] = Object.entries(action);
    const given = verb === "if" ? raw : resolved(raw, facts);
    if (verb === "return") value = given;
    else if (verb === "mark") write({ event: "mark", ...about, mark: given });
    else if (["progress", "checkpoint", "log"].includes(verb)) await ctx[verb](given);
    else if (verb === "sleep") await new Promise((resolve) => setTimeout(resolve, milliseconds(given)));
    else if (verb === "wait") await ctx.sleep(given);
    else if (verb === "children") facts.children = await ctx.enqueue(given.jobs, given.name ?? "");
    else if (verb === "if") {
      const isSo = JSON.stringify(resolved(given.value, facts)) === JSON.stringify(given.is);
      value = await act(ctx, (isSo ? given.then : given.else) ?? [], facts, about, value);
    } else throw outcome(verb, given);
  }
  return value;
}

function handler(worker, name, actions) {
  const runs = new Map();
  return async (args, ctx) => {
    const run = (runs.get(ctx.id) ?? 0) + 1;
    runs.set(ctx.id, run);
    const about = { worker, task: name, job: ctx.id, attempt: ctx.attempt };
    write({ event: "start", ...about, run, fence: ctx.fence, args });
    const { attempt, lastCheckpoint: checkpoint, headers, input, id } = ctx;
    try {
      const value = await act(ctx, actions, { args, attempt, run, checkpoint, headers, input, id }, about);
      write({ event: "end", ...about, how: "returned" });
      return value;
    } catch (error) {
      if (error instanceof Stopped) write({ event: "end", ...about, how: "stopped", by: error.by });
      else write({ event: "end", ...about, how: "raised" });
      throw error;
    }
  };
}

const verbs = {
  connect: ({ client, url, token }) => void clients.set(client, new Client(url, { token })),
  enqueue: async ({ client, task, args, options }) => (await client.enqueue(task, args, options)).id,
  enqueue_many: async ({ client, jobs }) => (await client.enqueueMany(jobs)).map((job) => job.id),
  get: ({ client, job }) => client.job(job).get(),
  result: ({ client, job, timeout }) => client.job(job).result({ timeout: timeout ?? "30s" }),
  cancel: async ({ client, job, reason }) => void (await client.job(job).cancel(reason)),
  retry: async ({ client, job }) => void (await client.job(job).retry()),
  "worker.start": ({ client, worker: called, name, queues, slots, lease, tasks, burst, grace }) => {
    const worker = new Worker(client, { queues, slots, lease, name });
    for (const [one, { run, ...options }] of Object.entries(tasks)) {
      worker.task(task(one, options), handler(called, one, run));
    }
    const ended = worker.run({ burst: burst ?? false, grace: grace ?? "30s", signals: false }).then(
      () => write({ event: "ended", worker: called }),
      (error) => console.error(`worker ${called}: ${error.message}`),
    );
    workers.set(called, { worker, ended });
  },
  "worker.stop": async ({ worker: called }) => {
    workers.get(called).worker.stop();
    await workers.get(called).ended;
  },
  "worker.wait": ({ worker: called }) => workers.get(called).ended,
};

async function answer({ id, do: verb, client, ...given }) {
  try {
    const it = verb === "connect" ? client : clients.get(client ?? "main");
    write({ id, value: (await verbs[verb]({ client: it, ...given })) ?? null });
  } catch (error) {
    const { status = 0, code = error.name, detail = error.message } = error instanceof WinchError ? error : {};
    write({ id, error: { status, code, message: detail } });
  }
}

for await (const line of createInterface({ input: process.stdin })) void answer(JSON.parse(line));
process.exit(0);
