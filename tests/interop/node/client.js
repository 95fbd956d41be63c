'use strict';

// What the Node client (ali-ons) does with a cluster, as one program.
//
//     node client.js NAMESRV STEP
//
// It prints what it saw as JSON on the last line.

const { Consumer, Message, Producer } = require('ali-ons');

const COUNT = 30;
const TIMEOUT_MS = 60000;
const quiet = { info() {}, warn() {}, debug() {}, error(...words) { console.error(...words); } };
const [ nameSrv, step ] = process.argv.slice(2);
const common = { nameSrv, httpclient: {}, logger: quiet };

async function producer(group) {
  const made = new Producer({ ...common, producerGroup: group });
  made.on('error', () => undefined); // it goes on by itself
  await made.ready();
  return made;
}

function message(topic, tags, body) {
  const made = new Message(topic, tags, body);
  made.keys = [ `key-${body}` ];
  return made;
}

/** Messages as they come to a consumer; `enough(count)` waits for them. */
async function push(group, topic, expression, answer = () => undefined) {
  const received = [];
  const consumer = new Consumer({ ...common, consumerGroup: group, isBroadcast: false });
  consumer.on('error', () => undefined); // also of topics that are not there yet
  let look = () => undefined;
  consumer.subscribe(topic, expression, async one => {
    received.push({
      body: one.body.toString(), tags: one.tags, keys: one.keys, queue: one.queueId, retries: one.reconsumeTimes,
      after_ms: Date.now() - Number(one.bornTimestamp),
    });
    look();
    return answer(one);
  });
  await consumer.ready();
  const enough = count => new Promise(resolve => {
    const late = setTimeout(resolve, TIMEOUT_MS);
    look = () => {
      if (received.length >= count) {
        clearTimeout(late);
        resolve();
      }
    };
    look();
  });
  return { consumer, received, enough };
}

const steps = {
  // Sends of three tags; a consumer of two of them.
  async tags() {
    const sender = await producer('node-tags-p');
    const statuses = [];
    for (let at = 0; at < COUNT; at++) {
      statuses.push((await sender.send(message('node-tags', 'ABC'[at % 3], `sync-${at}`))).sendStatus);
    }
    const { received, enough } = await push('node-tags-c', 'node-tags', 'A || B');
    await enough(COUNT * 2 / 3);
    statuses.push((await sender.send(message('node-tags', 'B', 'live'))).sendStatus);
    await enough(COUNT * 2 / 3 + 1);
    return { statuses, received };
  },

  // Messages that fail the first and the second time.
  async retry() {
    const sender = await producer('node-retry-p');
    for (let at = 0; at < 3; at++) {
      await sender.send(message('node-retry', 'A', String(at)));
    }
    const { received, enough } = await push('node-retry-c', 'node-retry', '*', one => {
      if (one.reconsumeTimes < 2) throw new Error('not yet');
    });
    await enough(9);
    return { received };
  },

  // A message of level 2, and one without.
  async delay() {
    const sender = await producer('node-delay-p');
    await sender.send(message('node-delay', 'A', 'now'));
    const later = message('node-delay', 'A', 'later');
    later.delayTimeLevel = 2;
    await sender.send(later);
    const { received, enough } = await push('node-delay-c', 'node-delay', '*');
    await enough(2);
    return { received };
  },
};

steps[step]().then(report => {
  process.stdout.write(JSON.stringify(report) + '\n', () => process.exit(0));
}, error => {
  console.error(error);
  process.exit(1);
});
