// A Hocket worker in TypeScript, without packages: change `work`, and keep the rest.
//
//   HOCKET_URL=http://127.0.0.1:7315 HOCKET_TOKEN=hkt_… HOCKET_KINDS=acme.* node worker.ts
//
// Node 22.18 or newer runs it as it stands; so do Deno and Bun.

type Job = { job_id: string; kind: string; payload: any; fence: number; attempt: number; lease_ms: number };
type Hold = { job: Job; until: number; stop: AbortController; overdue?: ReturnType<typeof setTimeout> };
type End = { job_id: string; fence: number; do: "complete" | "fail"; result?: unknown; error?: string; retry?: boolean };

const { HOCKET_URL, HOCKET_TOKEN, HOCKET_KINDS, HOCKET_LEASE_MS, HOCKET_WAIT_MS, HOCKET_COUNT } = process.env;
if (!HOCKET_URL || !HOCKET_TOKEN || !HOCKET_KINDS) throw new Error("set HOCKET_URL, HOCKET_TOKEN and HOCKET_KINDS");
const lease_ms = Number(HOCKET_LEASE_MS ?? 30_000);
const wait_ms = Number(HOCKET_WAIT_MS ?? 20_000);
const room = Number(HOCKET_COUNT ?? 8);
const worker = `typescript-${crypto.randomUUID()}`; // names this process alone

/** Your work. Once `stop` is aborted, the job is cancelled or another worker's. */
async function work(payload: any, stop: AbortSignal): Promise<unknown> {
  await pause(payload.ms ?? 0, stop);
  if (payload.fail) throw new Error(payload.fail);
  return payload.echo ?? null;
}

const holds = new Map<string, Hold>();
const asking = new AbortController(); // aborted when the worker drains: it ends the claim that waits for jobs
const now = () => performance.now();
const pause = (ms: number, stop?: AbortSignal) =>
  new Promise<void>((done) => {
    const timer = setTimeout(done, ms);
    stop?.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });

/** Sends a request, and sends it again until the answer is final or `stop` is aborted. */
async function post(path: string, body: object, stop?: AbortSignal, timeout_ms = wait_ms + 10_000, tries = Infinity) {
  for (let ms = 100; tries-- > 0 && !stop?.aborted; ms = Math.min(ms * 2, 5_000)) {
    const signals = [AbortSignal.timeout(Math.ceil(timeout_ms)), ...(stop ? [stop] : [])];
    let after = 0;
    try {
      const reply = await fetch(HOCKET_URL!.replace(/\/$/, "") + path, {
        method: "POST",
        headers: { Authorization: `Bearer ${HOCKET_TOKEN}`, "Content-Type": "application/json" },
        body: JSON.stringify(body),
        signal: AbortSignal.any(signals),
      });
      const answer: any = await reply.json();
      if (reply.ok) return { status: 200, answer };
      const later = reply.headers.get("Retry-After");
      if (later === null && ![429, 500, 502, 503, 504].includes(reply.status)) return { status: reply.status, answer };
      after = Number(later ?? 0) * 1_000;
    } catch {
      // No whole answer came, and the server may have done its part: repeat the same request.
    }
    if (tries > 0) await pause(Math.max(after, ms * (0.5 + Math.random() / 2)), stop);
  }
  return { status: 0, answer: {} as any };
}

/** Lets a lease last for `ms` from `asked`, by this machine's own clock. Then the work stops. */
function extend(hold: Hold, asked: number, ms: number) {
  clearTimeout(hold.overdue);
  hold.until = asked + ms;
  hold.overdue = setTimeout(() => hold.stop.abort(), hold.until - now());
}

/** Renews holds with one request. Their leases count from before it, so that no clocks are compared. */
async function renew(some: Map<string, Hold>) {
  const asked = now();
  const body = { worker, holds: [...some.values()].map(({ job }) => ({ job_id: job.job_id, fence: job.fence })) };
  const { answer } = await post("/v1/jobs/renew", body, undefined, lease_ms / 3, 1);
  for (const { job_id, state, lease_ms } of answer.holds ?? []) {
    const hold = some.get(job_id)!;
    if (state === "held" && !hold.stop.signal.aborted) extend(hold, asked, lease_ms);
    else hold.stop.abort(); // cancel or lost
  }
  if (answer.drain) asking.abort();
}

async function run(hold: Hold) {
  const { job_id, fence, payload } = hold.job;
  let end: End;
  try {
    end = { job_id, fence, do: "complete", result: await work(payload, hold.stop.signal) };
  } catch (error) {
    end = { job_id, fence, do: "fail", error: error instanceof Error ? error.message : String(error), retry: false };
  }
  if (!hold.stop.signal.aborted) await send(hold, end);
  clearTimeout(hold.overdue);
  holds.delete(job_id);
  changed();
}

let ended: [Hold, End][] = [];
let sending: Promise<void> | undefined;
/** Sends what ends within a moment with one request. A refusal is final: another worker has the job. */
function send(hold: Hold, end: End) {
  ended.push([hold, end]);
  return (sending ??= pause(1).then(async () => {
    const some = ended.filter(([hold]) => !hold.stop.signal.aborted);
    [ended, sending] = [[], undefined];
    const over = new AbortController();
    const look = () => some.every(([hold]) => hold.stop.signal.aborted) && over.abort();
    for (const [hold] of some) hold.stop.signal.addEventListener("abort", look);
    const body = { worker, ends: some.map(([, end]) => end) };
    const { status, answer } = await post("/v1/jobs/end", body, over.signal);
    const refused = status === 200 ? answer.ends.filter((each: any) => each.error) : status ? [answer] : [];
    for (const each of refused) console.error("refused:", each);
  }));
}

let changed = () => {};
const change = () => new Promise<void>((done) => (changed = done));

/** Claims jobs until the worker drains. A repeated request has the same claim_id, and so gets the same jobs. */
async function claimJobs() {
  while (!asking.signal.aborted) {
    if (holds.size >= room) {
      await Promise.race([change(), pause(1_000, asking.signal)]);
      continue;
    }
    const [asked, claim_id, kinds] = [now(), crypto.randomUUID(), HOCKET_KINDS!.split(",")];
    const body = { worker, claim_id, kinds, count: room - holds.size, lease_ms, wait_ms };
    const { status, answer } = await post("/v1/jobs/claim", body, asking.signal);
    if (status === 0) break; // The connection has ended with the request, and what was claimed goes back.
    if (status !== 200) throw new Error(`the server refuses claims with ${status}: ${answer.detail}`);
    const late = now() - asked > lease_ms / 3;
    const claimed = new Map<string, Hold>();
    for (const job of answer.jobs as Job[]) {
      const hold = { job, until: 0, stop: new AbortController() };
      if (!late) extend(hold, asked, job.lease_ms);
      claimed.set(job.job_id, hold);
    }
    if (late && claimed.size) await renew(claimed); // Nobody knows how long the answer was under way; this is short.
    for (const [job_id, hold] of claimed) {
      if (hold.until < now() || hold.stop.signal.aborted) continue;
      holds.set(job_id, hold);
      void run(hold);
    }
    if (answer.drain) asking.abort();
  }
}

for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => asking.abort());
const renewing = setInterval(() => holds.size && renew(new Map(holds)), lease_ms / 3);
try {
  await claimJobs();
} catch (error) {
  console.error(String(error));
  process.exitCode = 1;
}
while (holds.size) await Promise.race([change(), pause(1_000)]);
clearInterval(renewing);
await post("/v1/jobs/goodbye", { worker }, undefined, 5_000, 2);
