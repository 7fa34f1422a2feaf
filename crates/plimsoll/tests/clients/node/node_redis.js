// node-redis as its users use it: node_redis.js HOST PORT
'use strict';

const assert = require('node:assert/strict');
const { createClient, RESP_TYPES, WatchError } = require('redis');
const { address, large, restart, run, thousand, until } = require('./program.js');

const client = createClient({ socket: address });
// Users must listen for errors, or one ends their program. A server that restarts makes some.
const faults = [];
client.on('error', (error) => faults.push(error));

async function connects() {
  await client.connect();
  assert.equal(await client.ping(), 'PONG');
  const hello = await client.sendCommand(['HELLO']);
  assert.equal(hello.proto ?? hello.get?.('proto'), 3);
  await client.flushAll();
}

async function sets_and_gets() {
  assert.equal(await client.set('a', '1'), 'OK');
  assert.equal(await client.get('a'), '1');
  assert.equal(await client.get('absent'), null);
  assert.equal(await client.set('a', '2', { condition: 'NX' }), null);
  assert.equal(await client.set('a', '2', { condition: 'XX', GET: true }), '1');
  assert.equal(await client.mSet({ b: '3', 'späße': 'ünïcode ✓' }), 'OK');
  assert.deepEqual(await client.mGet(['a', 'absent', 'b', 'späße']), ['2', null, '3', 'ünïcode ✓']);
  assert.equal(await client.exists(['a', 'b', 'absent']), 2);
  assert.equal(await client.append('a', '34'), 3);
  assert.equal(await client.getRange('a', 1, -1), '34');
}

async function expires() {
  await client.set('e', '1', { expiration: { type: 'EX', value: 100 } });
  const left = await client.ttl('e');
  assert(left > 90 && left <= 100);
  assert.equal(await client.persist('e'), 1);
  assert.equal(await client.ttl('e'), -1);
  assert.equal(await client.expire('e', 50), 1);
  assert.equal(await client.pExpire('e', 20), 1);
  await until('expiry', async () => (await client.get('e')) === null);
  assert.equal(await client.ttl('e'), -2);
}

async function counts() {
  assert.equal(await client.incr('n'), 1);
  assert.equal(await client.incrBy('n', 41), 42);
  assert.equal(await client.decr('n'), 41);
  assert.equal(Number(await client.incrByFloat('f', 1.5)), 1.5);
  const many = await Promise.all(thousand.map(() => client.incr('many')));
  assert.deepEqual(many, thousand.map((number) => number + 1));
}

async function scans_and_deletes() {
  await Promise.all(thousand.map((number) => client.set(`scan:${number}`, '')));
  const seen = new Set();
  for await (const keys of client.scanIterator({ MATCH: 'scan:*', COUNT: 100 })) {
    for (const key of keys) seen.add(key);
  }
  assert.deepEqual(seen, new Set(thousand.map((number) => `scan:${number}`)));
  assert.equal(await client.del([...seen]), 1000);
  assert.equal(await client.unlink(['a', 'absent']), 1);
  assert.equal(await client.get('a'), null);
}

async function large_values() {
  const binary = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  assert.equal(await binary.set('large', large), 'OK');
  assert(large.equals(await binary.get('large')));
  assert.equal(await client.strLen('large'), large.length);
}

async function pipelines() {
  const stores = client.multi();
  for (const number of thousand) stores.set(`p:${number}`, `v:${number}`);
  assert.deepEqual(await stores.execAsPipeline(), thousand.map(() => 'OK'));
  const reads = client.multi();
  for (const number of thousand) reads.get(`p:${number}`);
  assert.deepEqual(await reads.execAsPipeline(), thousand.map((number) => `v:${number}`));
}

async function transactions() {
  const replies = await client.multi().set('t', '1').incr('t').get('t').exec();
  assert.deepEqual(replies, ['OK', 2, '2']);
  // Another writer between WATCH and EXEC: nothing of the transaction is done.
  const watcher = await client.duplicate().on('error', (error) => faults.push(error)).connect();
  await watcher.watch('t');
  await client.set('t', 'changed');
  await assert.rejects(watcher.multi().set('t', 'lost').exec(), WatchError);
  assert.equal(await client.get('t'), 'changed');
  await watcher.watch('t');
  assert.deepEqual(await watcher.multi().set('t', 'won').exec(), ['OK']);
  assert.equal(await client.get('t'), 'won');
  await watcher.close();
  // A command that cannot be queued: EXEC does nothing.
  await assert.rejects(client.multi().set('t', 'lost').addCommand(['GET']).exec());
  assert.equal(await client.get('t'), 'won');
}

async function messages() {
  const listener = await client.duplicate().on('error', (error) => faults.push(error)).connect();
  const heard = [];
  await listener.subscribe('news', (text, channel) => heard.push([channel, text]));
  await listener.pSubscribe('n*', (text, channel) => heard.push(['n*', channel, text]));
  assert.equal(await client.publish('news', 'first'), 2);
  await until('messages', () => heard.length === 2);
  assert.deepEqual(heard.sort(), [['n*', 'news', 'first'], ['news', 'first']]);
  await listener.unsubscribe('news');
  await listener.pUnsubscribe('n*');
  assert.equal(await client.publish('news', 'second'), 0);
  await listener.close();
}

async function errors() {
  await assert.rejects(client.sendCommand(['GET']), /wrong number of arguments for 'get' command/);
  await assert.rejects(client.sendCommand(['FLY', 'away']), /unknown command/);
  await assert.rejects(client.sendCommand(['SET', 'a', '1', 'EX', 'soon']), /not an integer/);
  await client.set('text', 'abc');
  await assert.rejects(client.incr('text'), /not an integer/);
  assert.equal(await client.get('text'), 'abc');
}

async function outlives_a_restart() {
  const before = await client.dbSize();
  assert.deepEqual(faults, []);
  await restart();
  // It connects again by itself. What is sent meanwhile waits.
  assert.equal(await client.get('n'), '41');
  assert.equal(await client.dbSize(), before);
  const binary = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  assert(large.equals(await binary.get('large')));
  assert.equal(await client.set('n', 'after'), 'OK');
  await client.close();
}

run('redis', [
  connects, sets_and_gets, expires, counts, scans_and_deletes, large_values, pipelines, transactions,
  messages, errors, outlives_a_restart,
]);
