'use strict';

// The official Node client of RocketMQ 5: each kind of message, sent and received. Prints one line of JSON.
//
//     node client.js HOST:PORT
//
// All steps run at once. An error of one is in its report.

const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const COUNT = 20;
const LIMIT_MS = 120000;
const INVISIBLE_MS = 10000;
const POLL_MS = 5000;
const DELAY_MS = 8000;
const quiet = { info() {}, warn() {}, debug() {}, error(...words) { console.error(...words); } };
const common = { endpoints: process.argv[2], namespace: '', logger: quiet };

const steps = {
  async normal() {
    const consumer = await simple('node-normal', 'odd');
    await send('node-normal', COUNT);
    const found = await receive(consumer, COUNT / 2);
    await consumer.shutdown();
    const [ first ] = found.sort((a, b) => a.properties.get('number') - b.properties.get('number'));
    return {
      bodies: bodies(found), properties: Object.fromEntries(first.properties), keys: first.keys, tag: first.tag,
      attempt: first.deliveryAttempt,
    };
  },

  async fifo() {
    const heard = await listen('node-fifo');
    await send('node-fifo', COUNT, number => ({ messageGroup: `group-${number % 2}` }));
    await until(() => heard.times.size === COUNT);
    const numbers = heard.order.map(body => Number(body.split(' ')[1]));
    return { even: numbers.filter(number => number % 2 === 0), odd: numbers.filter(number => number % 2) };
  },

  // The second is due before the first, and does not come: it is recalled.
  async delay() {
    const consumer = await simple('node-delay', '*');
    const due = Date.now() + DELAY_MS;
    const producer = await produce('node-delay');
    await producer.send({ ...message('node-delay', 0), deliveryTimestamp: new Date(due) });
    const other = await producer.send({ ...message('node-delay', 1), deliveryTimestamp: new Date(due - 1000) });
    await producer.recallMessage('node-delay', other.recallHandle);
    const found = await receive(consumer, 1);
    const early = due - Date.now() > 1000; // the timer counts in seconds
    await Promise.all([ producer.shutdown(), consumer.shutdown() ]);
    return { bodies: bodies(found), in_time: !early };
  },

  async transaction() {
    const consumer = await simple('node-txn', '*');
    const asked = new Set();
    const producer = await produce('node-txn', {
      async check(view) {
        asked.add(view.body.toString());
        return TransactionResolution.COMMIT;
      },
    });
    for (let number = 0; number < 3; number++) {
      const begun = producer.beginTransaction();
      await producer.send(message('node-txn', number), begun);
      if (number === 0) await begun.commit();
      if (number === 1) await begun.rollback(); // the third is not ended: the broker asks
    }
    const found = await receive(consumer, 2);
    await Promise.all([ producer.shutdown(), consumer.shutdown() ]);
    return { bodies: bodies(found), asked: [ ...asked ].sort() };
  },

  async push() {
    const heard = await listen('node-push', 1);
    await send('node-push', 3);
    await until(() => heard.times.size === 3 && [ ...heard.times.values() ].every(times => times >= 2));
    return { times: Object.fromEntries(heard.times), attempts: Object.fromEntries(heard.attempts) };
  },

  async invisible() {
    const consumer = await simple('node-invisible', '*');
    await send('node-invisible', 1);
    const [ first ] = await receive(consumer, 1, one => consumer.changeInvisibleDuration(one, INVISIBLE_MS));
    const [ second ] = await receive(consumer, 1);
    await consumer.shutdown();
    return { attempts: [ first.deliveryAttempt, second.deliveryAttempt ] };
  },

  async refused() {
    const producer = await produce('node-normal');
    try {
      await producer.send(message('node-nowhere', 0));
      return { topic: 'taken' };
    } catch (error) {
      return { topic: error.code ?? String(error) };
    } finally {
      await producer.shutdown();
    }
  },
};

async function produce(topic, checker) {
  const producer = new Producer({ ...common, topics: [ topic ], checker });
  await producer.startup();
  return producer;
}

async function simple(topic, expression) {
  const subscriptions = new Map([[ topic, expression ]]);
  const consumer = new SimpleConsumer({ ...common, consumerGroup: `g-${topic}`, subscriptions, awaitDuration: POLL_MS });
  await consumer.startup();
  return consumer;
}

/** What a push consumer got; each message fails the first `fails` times. Its stop would wait for a poll of 20 s. */
async function listen(topic, fails = 0) {
  const heard = { times: new Map(), attempts: new Map(), order: [] };
  const messageListener = {
    async consume(view) {
      const body = view.body.toString();
      heard.times.set(body, (heard.times.get(body) ?? 0) + 1);
      heard.attempts.set(body, view.deliveryAttempt);
      heard.order.push(body);
      return heard.times.get(body) <= fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  };
  const subscriptions = new Map([[ topic, '*' ]]);
  const consumer = new PushConsumer({
    ...common, consumerGroup: `g-${topic}`, subscriptions, messageListener, longPollingTimeout: POLL_MS,
  });
  await consumer.startup();
  return heard;
}

function message(topic, number) {
  return {
    topic, body: Buffer.from(`${topic} ${number}`), tag: number % 2 ? 'odd' : 'even', keys: [ `key-${number}` ],
    properties: new Map([[ 'number', String(number) ], [ '名', '值' ]]),
  };
}

async function send(topic, times, more = () => ({})) {
  const producer = await produce(topic);
  for (let number = 0; number < times; number++) {
    const receipt = await producer.send({ ...message(topic, number), ...more(number) });
    if (!receipt.messageId) throw new Error(`no id for ${topic} ${number}`);
  }
  await producer.shutdown();
}

/** This many messages, or what came until the limit. */
async function receive(consumer, wanted, act = one => consumer.ack(one)) {
  const found = [];
  for (const end = Date.now() + LIMIT_MS; found.length < wanted && Date.now() < end;) {
    for (const one of await consumer.receive(32, INVISIBLE_MS)) {
      await act(one);
      found.push(one);
    }
  }
  return found;
}

async function until(condition) {
  for (const end = Date.now() + LIMIT_MS; !condition() && Date.now() < end;) {
    await new Promise(resolve => { setTimeout(resolve, 50); });
  }
}

const bodies = found => found.map(one => one.body.toString()).sort();

const reports = Object.entries(steps).map(([ name, step ]) => step().then(
  report => [ name, report ],
  error => [ name, { error: error.stack ?? String(error) } ],
));
Promise.all(reports).then(all => {
  process.stdout.write(JSON.stringify(Object.fromEntries(all)) + '\n', () => process.exit(0));
});
