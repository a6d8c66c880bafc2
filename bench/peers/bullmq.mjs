// BullMQ with a high concurrency, which is how its own benchmarks reach their figures.

import { main, need, ran, SLOTS, URL_ } from "./kit.mjs";

const { Queue, Worker } = need("bullmq");
const url = new URL(URL_ || "redis://127.0.0.1");
const connection = { host: url.hostname, port: Number(url.port || 6379), maxRetriesPerRequest: null };

class BullMQ {
  open() {
    this.queue = new Queue("bench", { connection });
    return this.queue.waitUntilReady();
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
    const worker = new Worker("bench", (job) => ran(job.data), { connection, concurrency: SLOTS || 200 });
    worker.on("error", (error) => console.error(error.message));
    process.on("SIGTERM", async () => {
      await worker.close();
      process.exit(0);
    });
    await new Promise(() => {});
  }
}

await main(new BullMQ());
