// pg-boss with batches of 1,000 and its shortest polling.

import { main, need, ran, URL_ } from "./kit.mjs";

const { PgBoss } = need("pg-boss");

class Boss {
  async start() {
    const boss = new PgBoss({ connectionString: URL_ });
    boss.on("error", (error) => console.error(error.message));
    await boss.start();
    return boss;
  }

  async setup() {
    const boss = await this.start();
    await boss.createQueue("job");
    await boss.stop({ graceful: false });
  }

  async open() {
    this.boss = await this.start();
    const { Pool } = need("pg");
    this.pool = new Pool({ connectionString: URL_ });
  }

  enqueue(job) {
    return this.boss.send("job", job);
  }

  enqueueMany(jobs) {
    return this.boss.insert("job", jobs.map((data) => ({ data })));
  }

  async pending() {
    const { rows } = await this.pool.query(
      "SELECT count(*)::int AS n FROM pgboss.job WHERE name = 'job' AND state IN ('created', 'active', 'retry')",
    );
    return rows[0].n;
  }

  async work() {
    const boss = await this.start();
    const options = { batchSize: 1000, pollingIntervalSeconds: 0.5 };
    await boss.work("job", options, (jobs) => Promise.all(jobs.map((job) => ran(job.data))));
    await new Promise(() => {});
  }
}

await main(new Boss());
