// graphile-worker with its local queue and batched completion, as its own performance page advises.

import { GATE, key, KEYS, main, need, ran, SLOTS, URL_ } from "./kit.mjs";

const { Logger, makeWorkerUtils, run } = need("graphile-worker");
const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

// FIFO keys are its named queues: the jobs of one run in series.
const options = (job) => (GATE === "fifo" ? { queueName: key(job.n) } : {});

const local = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
// One named queue gains nothing from either: its next job is found once the one before it is completed in
// the store, and with them only at the next poll.
const one = { pollInterval: 100 };
const settings = GATE !== "fifo" ? local : KEYS === 1 ? one : { ...local, pollInterval: 100 };

class Graphile {
  async setup() {
    const utils = await makeWorkerUtils({ connectionString: URL_, logger });
    await utils.migrate();
    await utils.release();
  }

  async open() {
    const { Pool } = need("pg");
    this.pool = new Pool({ connectionString: URL_, max: 10 });
    this.utils = await makeWorkerUtils({ pgPool: this.pool, logger });
  }

  enqueue(job) {
    return this.utils.addJob("job", job, options(job));
  }

  enqueueMany(jobs) {
    return this.utils.addJobs(jobs.map((payload) => ({ identifier: "job", payload, ...options(payload) })));
  }

  async pending() {
    const { rows } = await this.pool.query("SELECT count(*)::int AS n FROM graphile_worker._private_jobs");
    return rows[0].n;
  }

  async work() {
    const runner = await run({
      connectionString: URL_,
      logger,
      taskList: { job: (payload) => ran(payload) },
      preset: {
        worker: {
          concurrentJobs: SLOTS || 24,
          maxPoolSize: 10,
          ...settings,
        },
      },
    });
    await runner.promise;
  }
}

await main(new Graphile());
