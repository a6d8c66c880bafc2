// A real `winch serve` for tests: its own SQLite file, a free port, and a token.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const python = process.env.SDK_PYTHON ?? fileURLToPath(new URL("../../../.venv/bin/python", import.meta.url));

export async function startServer() {
  const folder = mkdtempSync(join(tmpdir(), "winch-js-"));
  const env = { ...process.env, WINCH_URL: `sqlite:///${folder}/winch.db` };
  const winch = (...words) => execFileSync(python, ["-m", "winch", ...words], { env, cwd: folder, encoding: "utf8" });
  winch("migrate");
  const roles = ["read", "enqueue", "work", "operate"].flatMap((role) => ["--role", role]);
  const { token } = JSON.parse(winch("token", "create", "sdk", ...roles, "--json"));
  const server = spawn(python, ["-m", "winch", "serve", "--port", "0", "--auth"], {
    env,
    cwd: folder,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [line] = await new Promise((resolve, reject) => {
    createInterface({ input: server.stdout }).once("line", (text) => resolve([text]));
    server.once("exit", (code) => reject(new Error(`winch serve exited with ${code}`)));
  });
  return {
    url: line.trim().replace(/\/$/, "").replace("localhost", "127.0.0.1"),
    token,
    async stop() {
      const gone = new Promise((resolve) => server.once("exit", resolve));
      server.kill();
      await gone;
      rmSync(folder, { recursive: true });
    },
  };
}
