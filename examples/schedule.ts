// Types and async: runs a build plan, tasks that wait for others, on three
// workers at a time, and finds its critical path.
//
//   glovebox run --file examples/data/plan.json examples/schedule.ts plan.json
//
// Expect exit code 0, the tasks in the order in which they ended, and the
// critical path. esbuild, which is part of glovebox, turns TypeScript into
// JavaScript; types are taken away and not checked.
import { readFile } from 'node:fs/promises';

interface Task {
  readonly name: string;
  readonly millis: number;
  readonly after: readonly string[];
}

type State =
  | { kind: 'waiting' }
  | { kind: 'running'; worker: number }
  | { kind: 'done'; order: number };

type Result<T> = { ok: true; value: T } | { ok: false; problem: string };

function parse(text: string): Result<Map<string, Task>> {
  const plan = new Map<string, Task>();
  for (const task of JSON.parse(text) as Task[]) plan.set(task.name, task);
  for (const task of plan.values()) {
    const missing = task.after.find((name) => !plan.has(name));
    if (missing !== undefined) return { ok: false, problem: `${task.name} waits for ${missing}, which is not in the plan` };
  }
  return { ok: true, value: plan };
}

// A pool hands out its workers in the order in which they were asked for.
class Pool {
  private readonly free: number[];
  private readonly queue: Array<(worker: number) => void> = [];

  constructor(size: number) {
    this.free = Array.from({ length: size }, (_, i) => i + 1);
  }

  async use<T>(work: (worker: number) => Promise<T>): Promise<T> {
    const worker = this.free.shift() ?? (await new Promise<number>((resolve) => this.queue.push(resolve)));
    try {
      return await work(worker);
    } finally {
      const next = this.queue.shift();
      if (next) next(worker);
      else this.free.push(worker);
    }
  }
}

const sleep = (millis: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, millis));

async function execute(plan: Map<string, Task>, pool: Pool): Promise<string[]> {
  const states = new Map<string, State>([...plan.keys()].map((name) => [name, { kind: 'waiting' }]));
  const runs = new Map<string, Promise<void>>();
  const ended: string[] = [];
  const run = async (task: Task): Promise<void> => {
    await Promise.all(task.after.map((name) => once(plan.get(name)!)));
    await pool.use(async (worker) => {
      states.set(task.name, { kind: 'running', worker });
      await sleep(task.millis);
      ended.push(task.name);
      states.set(task.name, { kind: 'done', order: ended.length });
    });
  };
  const once = (task: Task): Promise<void> => {
    if (!runs.has(task.name)) runs.set(task.name, run(task));
    return runs.get(task.name)!;
  };
  await Promise.all([...plan.values()].map(once));
  return ended;
}

function critical(plan: Map<string, Task>): { path: string[]; millis: number } {
  const memo = new Map<string, { path: string[]; millis: number }>();
  const to = (name: string): { path: string[]; millis: number } => {
    const known = memo.get(name);
    if (known) return known;
    const task = plan.get(name)!;
    const before = task.after.map(to).reduce((a, b) => (b.millis > a.millis ? b : a), { path: [] as string[], millis: 0 });
    const found = { path: [...before.path, name], millis: before.millis + task.millis };
    memo.set(name, found);
    return found;
  };
  return [...plan.keys()].map(to).reduce((a, b) => (b.millis > a.millis ? b : a));
}

const parsed = parse(await readFile(process.argv[2] ?? 'plan.json', 'utf8'));
if (!parsed.ok) {
  console.error(`schedule: ${parsed.problem}`);
  process.exit(1);
}
const started = performance.now();
for (const name of await execute(parsed.value, new Pool(3))) console.log(`done  ${name}`);
const took = performance.now() - started;
const { path, millis } = critical(parsed.value);
// A timer may fire a millisecond early.
console.log(`critical path: ${path.join(' > ')}, ${millis} ms`);
console.log(`took ${Math.round(took)} ms, ${took >= millis - path.length ? 'not less than' : 'LESS THAN'} the critical path`);
