import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.body.CMResult;
import org.apache.rocketmq.remoting.protocol.body.LockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.body.UnlockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Uses the services of a broker with the real Java client, and after the store has changed hands uses them again.
 *
 * Services before|after --namesrv HOST:PORT --state FILE --broker kourou|java --checks N. Prints a JSON object: for
 * each service what did not fit. --checks is the broker's transactionCheckMax.
 */
public class Services {
    static final String BROKER = "broker-a";
    static final int QUEUES = 4;
    static final int RETRY_LEVEL = 3; // of messageDelayLevel: long enough for another broker to start
    static final long WAIT_MILLIS = 40_000;
    static final long LOCK_MILLIS = 60_000;

    static Map<String, String> o;
    static DefaultMQAdminExt admin;
    static DefaultMQProducer producer;
    static String address;
    static JSONObject state = new JSONObject();

    interface Step {
        void run(List<String> bad) throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    public static void main(String[] a) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        o = Interop.parse(a, 1);
        admin = Interop.admin0(o);
        address = Interop.masters(admin).get(0);
        producer = new DefaultMQProducer("services_producer");
        producer.setNamesrvAddr(o.get("namesrv"));
        producer.setInstanceName(Interop.inst());
        producer.setMqClientApiTimeout(15000);
        producer.setSendMsgTimeout(10000);
        producer.start();
        Path file = Paths.get(o.get("state"));
        JSONObject out = new JSONObject();
        if (a[0].equals("before")) {
            before(out);
            Files.write(file, Interop.text(state).getBytes(StandardCharsets.UTF_8));
        } else {
            state = JSON.parseObject(new String(Files.readAllBytes(file), StandardCharsets.UTF_8));
            after(out);
        }
        System.out.println(Interop.text(out));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void before(JSONObject out) {
        long began = System.currentTimeMillis();
        step(out, "lock", Services::lock);
        step(out, "recall", Services::sendTimers);
        step(out, "checks", Services::startUnknown);
        step(out, "lock closed", Services::closeReleases);
        step(out, "lmq", Services::light);
        step(out, "dlq", Services::deadLetters);
        step(out, "query", Services::sendForQueries);
        step(out, "query found", Services::query);
        step(out, "consume from", Services::consumeFromYoung);
        step(out, "broadcast", Services::broadcast);
        step(out, "recalled", Services::recalled);
        step(out, "checks given up", Services::givenUp);
        step(out, "lock expired", bad -> lockExpired(bad, began));
        step(out, "retry pending", Services::failOnce);
        step(out, "transaction open", Services::leaveOpen);
    }

    static void after(JSONObject out) {
        step(out, "transaction open", Services::endOpen);
        step(out, "lmq", Services::lightGoesOn);
        step(out, "dlq", Services::deadLettersStay);
        step(out, "query found", Services::query);
        step(out, "broadcast", Services::broadcastGoesOn);
        step(out, "retry pending", Services::retried);
        step(out, "consume from", Services::consumeFrom);
    }

    static void step(JSONObject out, String name, Step s) {
        List<String> bad = Collections.synchronizedList(new ArrayList<>());
        try {
            s.run(bad);
        } catch (Throwable t) {
            t.printStackTrace();
            bad.add(String.valueOf(t));
        }
        out.put(name, bad);
    }

    // ---- small helpers --------------------------------------------------------------------------

    static void expect(List<String> bad, String what, Object expected, Object got) {
        if (!String.valueOf(expected).equals(String.valueOf(got))) {
            bad.add(what + ": expected " + expected + ", got " + got);
        }
    }

    static boolean await(Condition c) throws Exception {
        long until = System.currentTimeMillis() + WAIT_MILLIS;
        while (!c.holds()) {
            if (System.currentTimeMillis() > until) {
                return false;
            }
            Thread.sleep(100);
        }
        return true;
    }

    static void topic(String name) throws Exception {
        Interop.topic(Interop.opts("namesrv", o.get("namesrv"), "topic", name, "queues", String.valueOf(QUEUES)));
    }

    static Message message(String topic, String key) {
        return new Message(topic, "TagA", key, ("body of " + key).getBytes(StandardCharsets.UTF_8));
    }

    /** Sends messages with the keys prefix-0, prefix-1, ... one after the other to the queues. */
    static Set<String> send(String topic, String prefix, int count) throws Exception {
        Set<String> keys = new TreeSet<>();
        for (int i = 0; i < count; i++) {
            String key = prefix + "-" + i;
            producer.send(message(topic, key), new MessageQueue(topic, BROKER, i % QUEUES));
            keys.add(key);
        }
        return keys;
    }

    /** Tells a client where the broker is: light queues have no route, and who sends nothing asks for none. */
    static void know(MQClientInstance client, String topic) {
        client.updateTopicRouteInfoFromNameServer(topic);
        client.sendHeartbeatToAllBrokerWithLock();
    }

    /** Everything in a topic; nothing while there is no such topic. */
    static List<JSONObject> all(String topic) throws Exception {
        List<JSONObject> found = new ArrayList<>();
        try {
            JSONObject r = Interop.pull(Interop.opts("namesrv", o.get("namesrv"), "topic", topic));
            for (Object m : (List<?>) r.get("messages")) {
                found.add((JSONObject) m);
            }
        } catch (org.apache.rocketmq.client.exception.MQClientException e) {
            // not yet known
        }
        return found;
    }

    static Set<String> keys(List<JSONObject> messages) {
        Set<String> keys = new TreeSet<>();
        for (JSONObject m : messages) {
            keys.add(m.getString("key"));
        }
        return keys;
    }

    static DefaultMQPushConsumer consumer(String group, String topic, ConsumeFromWhere from) throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(o.get("namesrv"));
        c.setInstanceName(Interop.inst());
        c.setMqClientApiTimeout(15000);
        c.setConsumeFromWhere(from);
        c.setPersistConsumerOffsetInterval(500);
        c.setPollNameServerInterval(1000);
        c.subscribe(topic, "*");
        return c;
    }

    /** Starts a consumer; the keys that it gets. */
    static List<String> collect(DefaultMQPushConsumer c) throws Exception {
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
            ms.forEach(m -> got.add(m.getKeys()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        return got;
    }

    static boolean hasItsQueues(DefaultMQPushConsumer c, String topic) {
        return c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(q -> q.getTopic().equals(topic)).count() == QUEUES;
    }

    /** Waits for these keys, and a moment more for others that must not come. */
    static void expectKeys(List<String> bad, String what, Set<String> wanted, List<String> got) throws Exception {
        await(() -> got.size() >= wanted.size());
        Thread.sleep(500);
        List<String> sorted = new ArrayList<>(got);
        Collections.sort(sorted);
        expect(bad, what, new ArrayList<>(wanted), sorted);
    }

    static Set<String> union(Set<String> a, Set<String> b) {
        Set<String> r = new TreeSet<>(a);
        r.addAll(b);
        return r;
    }

    // ---- ordered locks --------------------------------------------------------------------------

    static final String LOCK_GROUP = "services_lock";

    static Set<MessageQueue> tryLock(String client, MessageQueue... queues) throws Exception {
        LockBatchRequestBody body = new LockBatchRequestBody();
        body.setConsumerGroup(LOCK_GROUP);
        body.setClientId(client);
        Collections.addAll(body.getMqSet(), queues);
        return api().lockBatchMQ(address, body, 10000);
    }

    static MQClientAPIImpl api() {
        return admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    static MessageQueue lockedQueue(int id) {
        return new MessageQueue("services_lock", BROKER, id);
    }

    static void lock(List<String> bad) throws Exception {
        topic("services_lock");
        MessageQueue kept = lockedQueue(0), released = lockedQueue(1), free = lockedQueue(2);
        expect(bad, "first", 2, tryLock("one", kept, released).size());
        expect(bad, "again", 2, tryLock("one", kept, released).size());
        expect(bad, "second", Collections.singleton(free), tryLock("two", kept, released, free));
        UnlockBatchRequestBody body = new UnlockBatchRequestBody();
        body.setConsumerGroup(LOCK_GROUP);
        body.setClientId("one");
        body.getMqSet().add(released);
        api().unlockBatchMQ(address, body, 10000, false);
        expect(bad, "after the release", Collections.singleton(released), tryLock("two", kept, released));
    }

    static void lockExpired(List<String> bad, long began) throws Exception {
        MessageQueue kept = lockedQueue(0);
        if (System.currentTimeMillis() < began + LOCK_MILLIS) {
            expect(bad, "before its time", Collections.emptySet(), tryLock("two", kept));
        }
        expect(bad, "in the end", true, await(() -> tryLock("two", kept).contains(kept)));
    }

    /** A consumer that is closed gives its queues up: the next one need not wait for their time. */
    static void closeReleases(List<String> bad) throws Exception {
        topic("services_closed");
        Set<String> wanted = send("services_closed", "first", 8);
        for (String part : new String[]{"first", "second"}) {
            List<String> got = Collections.synchronizedList(new ArrayList<>());
            DefaultMQPushConsumer c = consumer("services_closed", "services_closed", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            c.registerMessageListener((MessageListenerOrderly) (ms, ctx) -> {
                ms.forEach(m -> got.add(m.getKeys()));
                return ConsumeOrderlyStatus.SUCCESS;
            });
            c.start();
            expectKeys(bad, part, wanted, got);
            c.shutdown();
            wanted = send("services_closed", "second", 8);
        }
    }

    // ---- timer messages that are recalled -------------------------------------------------------

    static void sendTimers(List<String> bad) throws Exception {
        topic("services_recall");
        JSONArray kept = new JSONArray();
        for (int i = 0; i < 6; i++) {
            Message m = message("services_recall", "timer-" + i);
            m.setDelayTimeSec(8);
            SendResult sent = producer.send(m);
            if (i % 3 == 1) {
                expect(bad, "recall " + i, sent.getMsgId(), producer.recallMessage("services_recall", sent.getRecallHandle()));
            } else {
                kept.add("timer-" + i);
            }
        }
        expect(bad, "in the topic at first", 0, all("services_recall").size());
        state.put("kept", kept);
    }

    static void recalled(List<String> bad) throws Exception {
        Set<String> kept = new TreeSet<>(state.getJSONArray("kept").toList(String.class));
        await(() -> all("services_recall").size() >= kept.size());
        Thread.sleep(2000);
        List<JSONObject> found = all("services_recall");
        expect(bad, "number", kept.size(), found.size());
        expect(bad, "keys", kept, keys(found));
    }

    // ---- transactions ---------------------------------------------------------------------------

    static final AtomicInteger checks = new AtomicInteger();

    static TransactionMQProducer transactions(String group, LocalTransactionState answer) throws Exception {
        TransactionMQProducer p = new TransactionMQProducer(group);
        p.setNamesrvAddr(o.get("namesrv"));
        p.setInstanceName(Interop.inst());
        p.setMqClientApiTimeout(15000);
        p.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message m, Object arg) {
                return LocalTransactionState.UNKNOW;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt m) {
                checks.incrementAndGet();
                return answer;
            }
        });
        p.start();
        return p;
    }

    static void startUnknown(List<String> bad) throws Exception {
        topic("services_unknown");
        transactions("services_unknown", LocalTransactionState.UNKNOW).sendMessageInTransaction(message("services_unknown", "unknown"), null);
    }

    static void givenUp(List<String> bad) throws Exception {
        expect(bad, "given up", true, await(() -> keys(all("TRANS_CHECK_MAX_TIME_TOPIC")).contains("unknown")));
        await(() -> checks.get() >= Integer.parseInt(o.get("checks")));
        expect(bad, "checks", o.get("checks"), checks.get());
        expect(bad, "seen", 0, all("services_unknown").size());
    }

    static void leaveOpen(List<String> bad) throws Exception {
        topic("services_open");
        TransactionMQProducer p = transactions("services_open", LocalTransactionState.UNKNOW);
        Message m = message("services_open", "open");
        // Brokers count checks that reach nobody, too: none may give it up before the other broker is there.
        m.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "20");
        p.sendMessageInTransaction(m, null);
        p.shutdown();
        expect(bad, "seen", 0, all("services_open").size());
    }

    static void endOpen(List<String> bad) throws Exception {
        TransactionMQProducer p = transactions("services_open", LocalTransactionState.COMMIT_MESSAGE);
        know(p.getDefaultMQProducerImpl().getMqClientFactory(), "services_open");
        expect(bad, "committed", true, await(() -> all("services_open").size() > 0));
        p.shutdown();
        List<JSONObject> found = all("services_open");
        expect(bad, "keys", "[open]", keys(found));
        // Java's broker commits once for each check that is answered.
        if (o.get("broker").equals("kourou")) {
            expect(bad, "messages", 1, found.size());
        }
    }

    // ---- light queues ---------------------------------------------------------------------------

    static final String[] LIGHT = {"%LMQ%services_a", "%LMQ%services_b"};

    static DefaultMQPullConsumer puller(String group) throws Exception {
        DefaultMQPullConsumer c = new DefaultMQPullConsumer(group);
        c.setNamesrvAddr(o.get("namesrv"));
        c.setInstanceName(Interop.inst());
        c.setMqClientApiTimeout(15000);
        c.setBrokerSuspendMaxTimeMillis(60_000); // longer than anybody waits here
        c.setConsumerTimeoutMillisWhenSuspend(90_000);
        c.start();
        know(c.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory(), "services_lmq");
        return c;
    }

    static void sendLight(int i) throws Exception {
        Message m = message("services_lmq", "light-" + i);
        String names = i % 2 == 0 ? LIGHT[0] + "," + LIGHT[1] : LIGHT[0];
        MessageAccessor.putProperty(m, "INNER_MULTI_DISPATCH", names);
        producer.send(m);
    }

    static List<String> pullLight(DefaultMQPullConsumer c, String name) throws Exception {
        List<String> got = new ArrayList<>();
        MessageQueue q = new MessageQueue(name, BROKER, 0);
        long at = 0;
        for (PullResult r = c.pull(q, "*", at, 32); r.getPullStatus() == PullStatus.FOUND; r = c.pull(q, "*", at, 32)) {
            r.getMsgFoundList().forEach(m -> got.add(m.getKeys()));
            at = r.getNextBeginOffset();
        }
        return got;
    }

    static void light(List<String> bad) throws Exception {
        topic("services_lmq");
        for (int i = 0; i < 6; i++) {
            sendLight(i);
        }
        DefaultMQPullConsumer c = puller("%LMQ%services_group");
        await(() -> pullLight(c, LIGHT[0]).size() == 6);
        expect(bad, "a", "[light-0, light-1, light-2, light-3, light-4, light-5]", pullLight(c, LIGHT[0]));
        expect(bad, "b", "[light-0, light-2, light-4]", pullLight(c, LIGHT[1]));
        expect(bad, "parent", 6, all("services_lmq").size());
        MessageQueue a = new MessageQueue(LIGHT[0], BROKER, 0);
        expect(bad, "maximum", 6, c.maxOffset(a));
        CompletableFuture<PullResult> held = CompletableFuture.supplyAsync(() -> {
            try {
                return c.pullBlockIfNotFound(a, "*", 6, 32);
            } catch (Exception e) {
                throw new RuntimeException(e);
            }
        });
        Thread.sleep(1000);
        sendLight(6);
        expect(bad, "held", "light-6", held.get(30, TimeUnit.SECONDS).getMsgFoundList().get(0).getKeys());
        c.updateConsumeOffset(a, 5);
        c.getOffsetStore().persist(a);
        expect(bad, "offset", true, await(() -> c.fetchConsumeOffset(a, true) == 5));
        c.shutdown();
    }

    static void lightGoesOn(List<String> bad) throws Exception {
        DefaultMQPullConsumer c = puller("%LMQ%services_group");
        sendLight(8);
        await(() -> pullLight(c, LIGHT[0]).size() == 8);
        expect(bad, "a", "[light-0, light-1, light-2, light-3, light-4, light-5, light-6, light-8]", pullLight(c, LIGHT[0]));
        expect(bad, "b", "[light-0, light-2, light-4, light-6, light-8]", pullLight(c, LIGHT[1]));
        expect(bad, "offset", 5, c.fetchConsumeOffset(new MessageQueue(LIGHT[0], BROKER, 0), true));
        c.shutdown();
    }

    // ---- dead letters ---------------------------------------------------------------------------

    static final String DEAD = "%DLQ%services_dead";

    static void deadLetters(List<String> bad) throws Exception {
        topic("services_dead");
        boolean[] fails = {true};
        List<String> times = Collections.synchronizedList(new ArrayList<>());
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer c = consumer("services_dead", "services_dead", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setMaxReconsumeTimes(1);
        c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
            for (MessageExt m : ms) {
                (fails[0] ? times : got).add(fails[0] ? m.getKeys() + ":" + m.getReconsumeTimes() : m.getKeys());
            }
            ctx.setDelayLevelWhenNextConsume(1);
            return fails[0] ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        Set<String> sent = send("services_dead", "dead", 3);
        expect(bad, "dead", true, await(() -> all(DEAD).size() == 3));
        Collections.sort(times);
        expect(bad, "times", "[dead-0:0, dead-0:1, dead-1:0, dead-1:1, dead-2:0, dead-2:1]", times);
        expect(bad, "perm of retries", 6, admin.examineTopicConfig(address, "%RETRY%services_dead").getPerm());
        expect(bad, "perm of the dead", 6, admin.examineTopicConfig(address, DEAD).getPerm());

        perm(bad, DEAD, 2);
        send("services_dead", "more", 1);
        expect(bad, "dead where nobody may read", true, await(() -> admin.maxOffset(new MessageQueue(DEAD, BROKER, 0)) == 4));
        perm(bad, DEAD, 6);

        fails[0] = false;
        expect(bad, "dead that may be read", true, await(() -> all(DEAD).size() == 4));
        List<JSONObject> dead = all(DEAD);
        for (JSONObject m : dead.subList(0, 3)) {
            Map<?, ?> properties = (Map<?, ?>) m.get("properties");
            expect(bad, "first topic", "services_dead", properties.get("RETRY_TOPIC"));
            producer.send(message(String.valueOf(properties.get("RETRY_TOPIC")), m.getString("key")));
        }
        expectKeys(bad, "sent again", sent, got);

        String client = admin.examineConsumerConnectionInfo("services_dead").getConnectionSet().iterator().next().getClientId();
        CMResult result = admin.consumeMessageDirectly("services_dead", client, DEAD, dead.get(3).getString("msgId")).getConsumeResult();
        expect(bad, "consumed directly", CMResult.CR_SUCCESS, result);
        expectKeys(bad, "in the end", union(sent, Collections.singleton("more-0")), got);
        c.shutdown();
    }

    /** Sets a permission; a pull is refused exactly where it does not allow reading. */
    static void perm(List<String> bad, String topic, int perm) throws Exception {
        admin.createAndUpdateTopicConfig(address, new TopicConfig(topic, 1, 1, perm));
        DefaultMQPullConsumer c = puller("services_reader");
        int code = ResponseCode.SUCCESS;
        try {
            c.pull(new MessageQueue(topic, BROKER, 0), "*", 0, 1);
        } catch (MQBrokerException e) {
            code = e.getResponseCode();
        }
        expect(bad, "pull with permission " + perm, (perm & 4) != 0 ? ResponseCode.SUCCESS : ResponseCode.NO_PERMISSION, code);
        c.shutdown();
    }

    static void deadLettersStay(List<String> bad) throws Exception {
        expect(bad, "dead", "[dead-0, dead-1, dead-2, more-0]", keys(all(DEAD)));
    }

    // ---- retries that are under way -------------------------------------------------------------

    static void failOnce(List<String> bad) throws Exception {
        topic("services_retry");
        Set<String> failed = Collections.synchronizedSet(new HashSet<>());
        DefaultMQPushConsumer c = consumer("services_retry", "services_retry", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
            ms.forEach(m -> failed.add(m.getKeys()));
            ctx.setDelayLevelWhenNextConsume(RETRY_LEVEL);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        c.start();
        send("services_retry", "retry", 4);
        expect(bad, "failed", true, await(() -> failed.size() == 4));
        Thread.sleep(1000);
        c.shutdown();
    }

    static void retried(List<String> bad) throws Exception {
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer c = consumer("services_retry", "services_retry", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
            ms.forEach(m -> got.add(m.getKeys() + ":" + m.getReconsumeTimes() + ":" + m.getTopic()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        Set<String> wanted = new TreeSet<>();
        for (int i = 0; i < 4; i++) {
            wanted.add("retry-" + i + ":1:services_retry");
        }
        expectKeys(bad, "retried", wanted, got);
        c.shutdown();
    }

    // ---- queries --------------------------------------------------------------------------------

    static void sendForQueries(List<String> bad) throws Exception {
        topic("services_query");
        for (String part : new String[]{"early", "late"}) {
            for (int i = 0; i < 20; i++) {
                producer.send(message("services_query", "same " + part + "-" + i), new MessageQueue("services_query", BROKER, i % QUEUES));
            }
            if (part.equals("early")) {
                Thread.sleep(2000); // the index has whole seconds
                state.put("between", System.currentTimeMillis());
                Thread.sleep(2000);
            }
        }
    }

    static Set<String> found(String key, long begin, long end) throws Exception {
        Set<String> keys = new TreeSet<>();
        for (MessageExt m : admin.queryMessage("services_query", key, 64, begin, end).getMessageList()) {
            keys.add(m.getKeys().split(" ")[1].split("-")[0] + m.getQueueId() + "/" + m.getQueueOffset());
        }
        return keys;
    }

    static void query(List<String> bad) throws Exception {
        long between = state.getLongValue("between"), always = Long.MAX_VALUE;
        await(() -> found("same", 0, always).size() == 40);
        expect(bad, "all", 40, found("same", 0, always).size());
        Set<String> early = found("same", 0, between), late = found("same", between, always);
        expect(bad, "early", 20, early.stream().filter(k -> k.startsWith("early")).count());
        expect(bad, "only early", 20, early.size());
        expect(bad, "late", 20, late.stream().filter(k -> k.startsWith("late")).count());
        expect(bad, "only late", 20, late.size());
        expect(bad, "never", "no message", noMessage(between, between + 1));
        for (int i = 0; i < 20; i += 7) {
            expect(bad, "early-" + i, 1, found("early-" + i, 0, always).size());
        }
        for (int i = 0; i < QUEUES; i++) {
            expect(bad, "offset by time", 5, admin.searchOffset(new MessageQueue("services_query", BROKER, i), between));
        }
    }

    static String noMessage(long begin, long end) throws Exception {
        try {
            return String.valueOf(found("same", begin, end));
        } catch (org.apache.rocketmq.client.exception.MQClientException e) {
            return e.getResponseCode() == ResponseCode.NO_MESSAGE ? "no message" : e.toString();
        }
    }

    // ---- where a new group begins ---------------------------------------------------------------

    /** A queue that has its begin in memory is taken from there, whatever the client asks for. */
    static void consumeFromYoung(List<String> bad) throws Exception {
        topic("services_young");
        Set<String> sent = send("services_young", "early", 8);
        DefaultMQPushConsumer c = consumer("services_young", "services_young", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        expectKeys(bad, "young", sent, collect(c));
        c.shutdown();
    }

    /** Where the begin of a queue is gone, it is as the client asks. Deletes what lies in old files. */
    static void consumeFrom(List<String> bad) throws Exception {
        String topic = "services_from";
        topic(topic);
        send(topic, "gone", 8);
        byte[] filler = new byte[256 * 1024]; // it must not get smaller by compression
        for (int i = 0; i < 8; i++) {
            new Random(i).nextBytes(filler);
            producer.send(new Message("services_young", filler));
        }
        Set<String> early = send(topic, "early", 8);
        Thread.sleep(2500);
        String between = UtilAll.timeMillisToHumanString3(System.currentTimeMillis());
        Set<String> late = send(topic, "late", 8);
        Properties atOnce = new Properties();
        atOnce.put("fileReservedTime", "0");
        admin.updateBrokerConfig(address, atOnce);
        admin.deleteExpiredCommitLogByAddr(address);
        MessageQueue lastQueue = new MessageQueue(topic, BROKER, QUEUES - 1);
        expect(bad, "gone", true, await(() -> admin.minOffset(lastQueue) == 2));
        DefaultMQPushConsumer first = consumer("services_from_first", topic, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        DefaultMQPushConsumer last = consumer("services_from_last", topic, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        DefaultMQPushConsumer time = consumer("services_from_time", topic, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        time.setConsumeTimestamp(between);
        List<String> gotFirst = collect(first), gotLast = collect(last), gotTime = collect(time);
        expect(bad, "queues", true, await(() -> hasItsQueues(first, topic) && hasItsQueues(last, topic) && hasItsQueues(time, topic)));
        Set<String> fresh = send(topic, "new", 8);
        expectKeys(bad, "first", union(union(early, late), fresh), gotFirst);
        expectKeys(bad, "last", fresh, gotLast);
        expectKeys(bad, "time", union(late, fresh), gotTime);
        first.shutdown();
        last.shutdown();
        time.shutdown();
    }

    // ---- broadcast ------------------------------------------------------------------------------

    static DefaultMQPushConsumer listener(String instance) throws Exception {
        DefaultMQPushConsumer c = consumer("services_broadcast", "services_broadcast", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setMessageModel(MessageModel.BROADCASTING);
        c.setInstanceName(instance);
        return c;
    }

    static void broadcast(List<String> bad) throws Exception {
        topic("services_broadcast");
        DefaultMQPushConsumer one = listener("one"), two = listener("two");
        List<String> gotOne = collect(one), gotTwo = collect(two);
        Set<String> sent = send("services_broadcast", "early", 8);
        expectKeys(bad, "one", sent, gotOne);
        expectKeys(bad, "two", sent, gotTwo);
        one.shutdown();
        two.shutdown();
    }

    /** Offsets are the clients' own: who comes back goes on, whoever serves it. */
    static void broadcastGoesOn(List<String> bad) throws Exception {
        Set<String> sent = send("services_broadcast", "late", 8);
        DefaultMQPushConsumer one = listener("one");
        expectKeys(bad, "one", sent, collect(one));
        one.shutdown();
    }
}
