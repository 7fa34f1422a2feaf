// What the programs for Node share: the steps in order, and asking for a restart of the server.
//
// The test that starts a program kills the server when it reads "restart", starts it again at the same
// address, and answers "restarted". Anything that is not as expected ends the program with an error.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

const address = { host: process.argv[2], port: Number(process.argv[3]) };

// The version of a package as it is installed.
function version(name) {
  const file = path.join(process.env.NODE_PATH, name, 'package.json');
  return JSON.parse(fs.readFileSync(file, 'utf8')).version;
}

const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function restart() {
  console.log('restart');
  const answer = await answers.next();
  if (answer.value !== 'restarted') throw new Error(`not restarted: ${answer.value}`);
}

// Waits until `done` gives something true.
async function until(what, done) {
  const deadline = Date.now() + 30_000;
  for (;;) {
    const given = await done();
    if (given) return given;
    if (Date.now() > deadline) throw new Error(`it does not come: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

// Runs the steps, and says the client and its version when all are done.
async function run(name, steps) {
  for (const step of steps) {
    try {
      await step();
    } catch (error) {
      console.error(`${name}: ${step.name} failed:`, error);
      process.exit(1);
    }
  }
  console.log(`${name} ${version(name)}: ok`);
  process.exit(0);
}

// Two MiB in which every byte and no period of a record's size occurs.
const large = Buffer.alloc(2 << 20);
for (let at = 0; at < large.length; at += 1) large[at] = (at * 31 + (at >> 8) * 7 + (at >> 16)) & 255;

const thousand = Array.from({ length: 1000 }, (_, number) => number);

module.exports = { address, large, restart, run, thousand, until };
