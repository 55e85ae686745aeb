// Threads: counts the primes below a number with four workers that share their
// memory, and adds them up.
//
//   glovebox run examples/primes.js 2000000
//
// Expect exit code 0, one line for each worker and the total.
'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');

const WORKERS = 4;

// sieve counts and sums the primes of [low, high), given all primes up to the
// square root of high.
function sieve(low, high, small) {
  const composite = new Uint8Array(high - low);
  for (const p of small) {
    for (let n = Math.max(p * p, Math.ceil(low / p) * p); n < high; n += p) composite[n - low] = 1;
  }
  let count = 0;
  let sum = 0;
  for (let n = Math.max(low, 2); n < high; n++) {
    if (!composite[n - low]) {
      count++;
      sum += n;
    }
  }
  return { count, sum };
}

function smallPrimes(limit) {
  const out = [];
  for (let n = 2; n <= limit; n++) {
    if (out.every((p) => p * p > n || n % p !== 0)) out.push(n);
  }
  return out;
}

if (isMainThread) {
  const limit = Number(process.argv[2] ?? 2000000);
  if (!Number.isSafeInteger(limit) || limit < 10 || limit > 50000000) {
    console.error('primes: give a whole number between 10 and 50000000');
    process.exit(2);
  }
  const totals = new BigInt64Array(new SharedArrayBuffer(16));
  const small = smallPrimes(Math.floor(Math.sqrt(limit)));
  const step = Math.ceil(limit / WORKERS);
  let left = WORKERS;
  for (let i = 0; i < WORKERS; i++) {
    const range = { low: i * step, high: Math.min((i + 1) * step, limit) };
    const worker = new Worker(__filename, { workerData: { ...range, small, totals } });
    worker.on('message', (count) => console.log(`worker ${i}: ${count} primes from ${range.low} to ${range.high - 1}`));
    worker.on('exit', () => {
      if (--left === 0) console.log(`${totals[0]} primes below ${limit}, their sum is ${totals[1]}`);
    });
  }
} else {
  const { low, high, small, totals } = workerData;
  const { count, sum } = sieve(low, high, small);
  Atomics.add(totals, 0, BigInt(count));
  Atomics.add(totals, 1, BigInt(sum));
  parentPort.postMessage(count);
}
