// ioredis as its users use it: ioredis.js HOST PORT
'use strict';

const assert = require('node:assert/strict');
const Redis = require('ioredis');
const { address, large, restart, run, thousand, until } = require('./program.js');

const client = new Redis(address);
const faults = [];
client.on('error', (error) => faults.push(error));

// The replies of a pipeline or transaction: pairs of an error and a value.
function values(replies) {
  for (const [error] of replies) assert.equal(error, null);
  return replies.map(([, value]) => value);
}

async function connects() {
  assert.equal(await client.ping(), 'PONG');
  const hello = await client.call('HELLO');
  assert.equal(hello[hello.indexOf('proto') + 1], 3);
  await client.flushall();
}

async function sets_and_gets() {
  assert.equal(await client.set('a', '1'), 'OK');
  assert.equal(await client.get('a'), '1');
  assert.equal(await client.get('absent'), null);
  assert.equal(await client.set('a', '2', 'NX'), null);
  assert.equal(await client.set('a', '2', 'XX', 'GET'), '1');
  assert.equal(await client.mset({ b: '3', 'späße': 'ünïcode ✓' }), 'OK');
  assert.deepEqual(await client.mget('a', 'absent', 'b', 'späße'), ['2', null, '3', 'ünïcode ✓']);
  assert.equal(await client.exists('a', 'b', 'absent'), 2);
  assert.equal(await client.append('a', '34'), 3);
  assert.equal(await client.getrange('a', 1, -1), '34');
}

async function expires() {
  await client.set('e', '1', 'EX', 100);
  const left = await client.ttl('e');
  assert(left > 90 && left <= 100);
  assert.equal(await client.persist('e'), 1);
  assert.equal(await client.ttl('e'), -1);
  assert.equal(await client.expire('e', 50), 1);
  assert.equal(await client.pexpire('e', 20), 1);
  await until('expiry', async () => (await client.get('e')) === null);
  assert.equal(await client.ttl('e'), -2);
}

async function counts() {
  assert.equal(await client.incr('n'), 1);
  assert.equal(await client.incrby('n', 41), 42);
  assert.equal(await client.decr('n'), 41);
  assert.equal(Number(await client.incrbyfloat('f', 1.5)), 1.5);
  const many = await Promise.all(thousand.map(() => client.incr('many')));
  assert.deepEqual(many, thousand.map((number) => number + 1));
}

async function scans_and_deletes() {
  await Promise.all(thousand.map((number) => client.set(`scan:${number}`, '')));
  const seen = new Set();
  for await (const keys of client.scanStream({ match: 'scan:*', count: 100 })) {
    for (const key of keys) seen.add(key);
  }
  assert.deepEqual(seen, new Set(thousand.map((number) => `scan:${number}`)));
  assert.equal(await client.del(...seen), 1000);
  assert.equal(await client.unlink('a', 'absent'), 1);
  assert.equal(await client.get('a'), null);
}

async function large_values() {
  assert.equal(await client.set('large', large), 'OK');
  assert(large.equals(await client.getBuffer('large')));
  assert.equal(await client.strlen('large'), large.length);
}

async function pipelines() {
  const stores = client.pipeline();
  for (const number of thousand) stores.set(`p:${number}`, `v:${number}`);
  assert.deepEqual(values(await stores.exec()), thousand.map(() => 'OK'));
  const reads = client.pipeline();
  for (const number of thousand) reads.get(`p:${number}`);
  assert.deepEqual(values(await reads.exec()), thousand.map((number) => `v:${number}`));
}

async function transactions() {
  const replies = await client.multi().set('t', '1').incr('t').get('t').exec();
  assert.deepEqual(values(replies), ['OK', 2, '2']);
  // Another writer between WATCH and EXEC: nothing of the transaction is done.
  const watcher = client.duplicate();
  assert.equal(await watcher.watch('t'), 'OK');
  await client.set('t', 'changed');
  assert.equal(await watcher.multi().set('t', 'lost').exec(), null);
  assert.equal(await client.get('t'), 'changed');
  assert.equal(await watcher.watch('t'), 'OK');
  assert.deepEqual(values(await watcher.multi().set('t', 'won').exec()), ['OK']);
  assert.equal(await client.get('t'), 'won');
  await watcher.quit();
  // A command that cannot be queued: EXEC does nothing. One that fails in EXEC: the others are done.
  await assert.rejects(client.multi().set('t', 'lost').call('GET').exec(), /EXECABORT/);
  assert.equal(await client.get('t'), 'won');
  const partly = await client.multi().incr('t').set('t', 'done').exec();
  assert.match(partly[0][0].message, /not an integer/);
  assert.deepEqual(partly[1], [null, 'OK']);
}

async function messages() {
  const listener = client.duplicate();
  const heard = [];
  listener.on('message', (channel, text) => heard.push([channel, text]));
  listener.on('pmessage', (pattern, channel, text) => heard.push([pattern, channel, text]));
  assert.equal(await listener.subscribe('news'), 1);
  assert.equal(await listener.psubscribe('n*'), 2);
  assert.equal(await client.publish('news', 'first'), 2);
  await until('messages', () => heard.length === 2);
  assert.deepEqual(heard.sort(), [['n*', 'news', 'first'], ['news', 'first']]);
  await listener.unsubscribe('news');
  await listener.punsubscribe('n*');
  assert.equal(await client.publish('news', 'second'), 0);
  await listener.quit();
}

async function errors() {
  await assert.rejects(client.call('GET'), /wrong number of arguments for 'get' command/);
  await assert.rejects(client.call('FLY', 'away'), /unknown command/);
  await assert.rejects(client.set('a', '1', 'EX', 'soon'), /not an integer/);
  await client.set('text', 'abc');
  await assert.rejects(client.incr('text'), /not an integer/);
  assert.equal(await client.get('text'), 'abc');
}

async function outlives_a_restart() {
  const before = await client.dbsize();
  assert.deepEqual(faults, []);
  await restart();
  // It connects again by itself. What is sent meanwhile waits.
  assert.equal(await client.get('n'), '41');
  assert.equal(await client.dbsize(), before);
  assert(large.equals(await client.getBuffer('large')));
  assert.equal(await client.set('n', 'after'), 'OK');
  await client.quit();
}

run('ioredis', [
  connects, sets_and_gets, expires, counts, scans_and_deletes, large_values, pipelines, transactions,
  messages, errors, outlives_a_restart,
]);
