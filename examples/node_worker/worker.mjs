// A Winch worker in JavaScript: claims jobs over HTTP, keeps its leases, reports how they end.
//
//   WINCH_SERVER=http://127.0.0.1:8090 WINCH_TOKEN=winch_… node worker.mjs QUEUE
//
// Needs Node 18 or later and nothing else. Stops after its current jobs on SIGTERM or SIGINT;
// WINCH_BURST=1 stops when the queue is empty.
const server = process.env.WINCH_SERVER ?? "http://127.0.0.1:8090";
const queue = process.argv[2] ?? "default";
const LEASE_SECONDS = 30;

// What this worker can do: a function for each task. It gets the arguments and a way to report.
const tasks = {
  "node.thumbnail": async ({ image, width }, job) => {
    await job.report({ percent: 50, message: `reading ${image}` });
    return `${image}@${width}`;
  },
  "node.fails": async () => {
    throw new Error("this one never works");
  },
};

async function ask(method, path, body) {
  const headers = { "content-type": "application/json" };
  if (process.env.WINCH_TOKEN) headers.authorization = `Bearer ${process.env.WINCH_TOKEN}`;
  const answer = await fetch(`${server}/api/v1${path}`, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const reply = await answer.json();
  if (!answer.ok) {
    const error = new Error(`${answer.status} ${reply.code}: ${reply.detail}`);
    error.code = reply.code;
    throw error;
  }
  return reply;
}

async function run(job) {
  const path = `/jobs/${job.id}`;
  const token = job.token;
  let isMine = true;
  // A third of the lease between two heartbeats: two may be lost on the way.
  const heart = setInterval(() => {
    ask("POST", `${path}/heartbeat`, { token }).catch((error) => {
      if (error.code === "lost-claim") isMine = false;
    });
  }, (LEASE_SECONDS / 3) * 1000);
  try {
    const result = await tasks[job.task](job.args, {
      ...job,
      report: (progress) => ask("POST", `${path}/heartbeat`, { token, progress }),
      stillMine: () => isMine,
    });
    await ask("POST", `${path}/complete`, { token, result: result ?? null });
    console.log(`${job.task} ${job.id} completed`);
  } catch (error) {
    if (error.code === "lost-claim") return; // another worker has it by now
    const failure = { type: error.name, message: error.message, traceback: error.stack };
    const ended = await ask("POST", `${path}/fail`, { token, error: failure });
    console.log(`${job.task} ${job.id} failed, it is ${ended.state} now`);
  } finally {
    clearInterval(heart);
  }
}

let isStopping = false;
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => { isStopping = true; });

while (!isStopping) {
  const { jobs } = await ask("POST", `/queues/${encodeURIComponent(queue)}/claim`, {
    max: 4,
    lease: `${LEASE_SECONDS}s`,
    wait: process.env.WINCH_BURST ? "0s" : "20s",
    worker: `node-${process.pid}`,
    tasks: Object.keys(tasks),
  });
  await Promise.all(jobs.map(run));
  if (jobs.length === 0 && process.env.WINCH_BURST) break;
}
