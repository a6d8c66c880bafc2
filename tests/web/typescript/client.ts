// A client in strict TypeScript, on the types that openapi-typescript makes of the description.
import type { components } from "./schema.js";

type Schemas = components["schemas"];

const server = process.env["WINCH_SERVER"];
if (server === undefined) throw new Error("set WINCH_SERVER");

async function post<Sent, Received>(path: string, body: Sent): Promise<Received> {
  const answer = await fetch(`${server}/api/v1${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return (await answer.json()) as Received;
}

const job: Schemas["NewJobBody"] = {
  task: "ts.resize",
  queue: "ts",
  args: { image: "a.png", size: { width: 100, height: 50 }, tags: ["small"] },
};
const stored = await post<Schemas["NewJobBody"], Schemas["JobDetail"]>("/jobs", job);

const claim: Schemas["ClaimBody"] = { max: 1, worker: "typescript" };
const claimed = await post<Schemas["ClaimBody"], Schemas["ClaimedOut"]>("/queues/ts/claim", claim);
const [mine] = claimed.jobs;
if (mine === undefined || mine.id !== stored.id) throw new Error("the job is not handed out");

const done: Schemas["CompleteBody"] = { token: mine.token, result: { got: mine.args } };
const finished = await post<Schemas["CompleteBody"], Schemas["FinishedOut"]>(
  `/jobs/${mine.id}/complete`,
  done,
);
if (finished.state !== "completed") throw new Error(`it is ${finished.state}`);
console.log(stored.id);
