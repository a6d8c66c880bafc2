// BullMQ with a high concurrency, which is how its own benchmarks reach their figures.

import { GATE, LIMIT, main, need, RATE, ran, SLOTS, URL_ } from "./kit.mjs";

const { Queue, Worker } = need("bullmq");
const url = new URL(URL_ || "redis://127.0.0.1");
const connection = { host: url.hostname, port: Number(url.port || 6379), maxRetriesPerRequest: null };

class BullMQ {
  async open() {
    this.queue = new Queue("bench", { connection });
    await this.queue.waitUntilReady();
    if (GATE === "limit") await this.queue.setGlobalConcurrency(LIMIT);
  }

  enqueue(job) {
    return this.queue.add("job", job);
  }

  atOnce = 1000;

  enqueueMany(jobs) {
    return this.queue.addBulk(jobs.map((data) => ({ name: "job", data })));
  }

  async pending() {
    const counts = await this.queue.getJobCounts("wait", "active", "delayed", "prioritized", "paused");
    return Object.values(counts).reduce((sum, n) => sum + n, 0);
  }

  async work() {
    const limiter = GATE === "rate" ? { limiter: { max: RATE, duration: 1000 } } : {};
    const options = { connection, concurrency: SLOTS || 200, ...limiter };
    const worker = new Worker("bench", (job) => ran(job.data), options);
    worker.on("error", (error) => console.error(error.message));
    process.on("SIGTERM", async () => {
      await worker.close();
      process.exit(0);
    });
    await new Promise(() => {});
  }
}

await main(new BullMQ());
