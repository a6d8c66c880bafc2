// A worker and a producer with faktory-worker: `node worker.js work|push|pushb|wrong FILE [COUNT]`.
const fs = require("fs");
const faktory = require("faktory-worker");
const [, , mode, file, count] = process.argv;
const note = (line) => fs.appendFileSync(file, `${line}\n`);

async function main() {
  if (mode === "work") {
    faktory.register("note", async (name, n) => {
      note(`start ${name} ${n}`);
      await new Promise((resolve) => setTimeout(resolve, n === 0 ? 300 : 20));
      if (name === "fails") throw new Error("as it should");
    });
    const worker = await faktory.work({ queues: ["node", "shared"], concurrency: 5, beatInterval: 1 });
    worker.on("fail", ({ job }) => note(`failed ${job.args[0]}`));
    worker.on("error", (error) => note(`error ${error.message.split("\n")[0]}`));
    return;
  }
  const client = await faktory.connect();
  if (mode === "push") {
    for (let n = 0; n < Number(count); n++) {
      const job = client.job("note", "push", n);
      job.queue = "node";
      job.retry = 3;
      await job.push();
    }
  } else if (mode === "pushb") {
    const jobs = Array.from({ length: Number(count) }, (_, n) => {
      const job = client.job("note", "bulk", n);
      job.queue = "node";
      return job;
    });
    const refused = await client.pushBulk(jobs);
    note(`refused ${Object.keys(refused).length}`);
  } else if (mode === "info") {
    note(`info ${(await client.info()).server.description}`);
  }
  await client.close();
}

main().catch((error) => {
  note(`error ${error.message}`);
  process.exit(1);
});
