import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageQueueAssignment;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.NotificationRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PollingInfoRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The calls of POP by the real Java client, one after the other, and what came of each: the same program is for
 * Kourou's broker and for Java's, and what it prints must be the same.
 *
 * PopCalls --namesrv A
 */
public class PopCalls {
    static final long LONG = 60_000, SHORT = 3_000;
    static final int BIG = 3_000_000;

    static DefaultMQAdminExt admin;
    static MQClientAPIImpl api;
    static DefaultMQProducer producer;
    static String address, broker;
    static final JSONObject out = new JSONObject();

    public static void main(String[] a) throws Exception {
        Map<String, String> o = Interop.parse(a, 0);
        admin = Interop.admin0(o);
        address = Interop.masters(admin).get(0);
        broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().keySet().iterator().next();
        api = admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
        producer = new DefaultMQProducer("PG");
        producer.setNamesrvAddr(o.get("namesrv"));
        producer.setInstanceName(Interop.inst());
        producer.start();
        try {
            normal();
            filtered();
            changed();
            ordered();
            reset();
            asked();
            refused();
        } catch (Throwable e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
        System.out.println(Interop.text(out));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    /** Pop, acknowledge one by one and together, a big message, and what was not acknowledged again. */
    static void normal() throws Exception {
        topic("normal", 2);
        send("normal", "a", "A", null, 0);
        send("normal", "b", "A", null, 1);
        send("normal", "c", "A", null, 0);
        List<MessageExt> first = pop("normal", 32, SHORT, false, null, "*", "TAG");
        out.put("normal", bodies(first));
        out.put("nothing while they are in flight", bodies(pop("normal", 32, SHORT, false, null, "*", "TAG")));
        out.put("one", ack("normal", find(first, "a")));
        out.put("together", batchAck("normal", Collections.singletonList(find(first, "b"))));
        out.put("again", bodies(await("normal", 1)));
        out.put("times", times("normal"));
        byte[] body = new byte[BIG];
        Arrays.fill(body, (byte) 'x');
        producer.send(new Message("normal", "A", body), queue("normal", 0), 20_000);
        List<MessageExt> big = await("normal", 1);
        out.put("big", big.get(0).getBody().length);
        out.put("big is done", ack("normal", big.get(0)));
        for (int i = 0; i < 40; i++) {
            send("normal", "m" + i, "A", null, i % 2);
        }
        List<MessageExt> many = new ArrayList<>();
        for (int i = 0; i < 10 && many.size() < 40; i++) {
            many.addAll(pop("normal", 32, SHORT, false, null, "*", "TAG"));
        }
        out.put("many", bodies(many));
        out.put("many are done", batchAck("normal", many));
        Thread.sleep(SHORT + 4_000);
        out.put("nothing of them comes again", bodies(pop("normal", 32, SHORT, false, null, "*", "TAG")));
    }

    static void filtered() throws Exception {
        topic("filtered", 1);
        for (String tag : new String[] {"A", "B", "C"}) {
            send("filtered", tag + "1", tag, "red", 0);
            send("filtered", tag + "2", tag, "blue", 0);
        }
        out.put("tags", bodies(pop("filtered", 32, LONG, false, null, "A || B", "TAG")));
        topic("sql", 1);
        for (String color : new String[] {"red", "blue", "red"}) {
            send("sql", color, "A", color, 0);
        }
        out.put("sql", bodies(pop("sql", 32, LONG, false, null, "color = 'blue'", "SQL92")));
    }

    /** Another invisible time: the old handle is of no use, the new one is. */
    static void changed() throws Exception {
        topic("changed", 1);
        send("changed", "soon", "A", null, 0);
        send("changed", "later", "A", null, 0);
        List<MessageExt> found = pop("changed", 32, LONG, false, null, "*", "TAG");
        String soon = change("changed", find(found, "soon"), SHORT);
        out.put("changed", soon.equals("none") ? "none" : "handle");
        String later = change("changed", find(found, "later"), LONG);
        out.put("the new handle", ack("changed", find(found, "later"), later));
        out.put("soon", bodies(await("changed", 1)));
    }

    static void ordered() throws Exception {
        topic("ordered", 1);
        for (int i = 0; i < 4; i++) {
            send("ordered", "o" + i, "A", null, 0);
        }
        List<MessageExt> first = pop("ordered", 2, LONG, true, "one", "*", "TAG");
        out.put("ordered", bodies(first));
        out.put("blocked", bodies(pop("ordered", 2, LONG, true, "two", "*", "TAG")));
        out.put("first in order", ack("ordered", first.get(0)));
        out.put("still blocked", bodies(pop("ordered", 2, LONG, true, "two", "*", "TAG")));
        out.put("second in order", ack("ordered", first.get(1)));
        List<MessageExt> second = pop("ordered", 2, LONG, true, "two", "*", "TAG");
        out.put("free", bodies(second));
        out.put("hidden", change("ordered", second.get(0), 0).equals("none") ? "none" : "handle");
        List<MessageExt> third = pop("ordered", 2, LONG, true, "three", "*", "TAG");
        out.put("head again", third.isEmpty() ? "blocked by the other" : bodies(third));
    }

    /** An offset that is reset while messages are in flight. */
    static void reset() throws Exception {
        topic("reset", 1);
        for (int i = 0; i < 3; i++) {
            send("reset", "r" + i, "A", null, 0);
        }
        out.put("before", bodies(pop("reset", 32, LONG, false, null, "*", "TAG")));
        api.invokeBrokerToResetOffset(address, "reset", group("reset"), 0L, 0, 1L, 5_000);
        out.put("after", bodies(pop("reset", 32, LONG, false, null, "*", "TAG")));
    }

    /** What else a client asks. */
    static void asked() throws Exception {
        topic("asked", 3);
        group("asked");
        out.put("no message", notification("asked"));
        send("asked", "n", "A", null, 0);
        out.put("a message", notification("asked"));
        PollingInfoRequestHeader polling = new PollingInfoRequestHeader();
        polling.setConsumerGroup(group("asked"));
        polling.setTopic("asked");
        polling.setQueueId(0);
        RemotingCommand answer = invoke(RequestCode.POLLING_INFO, polling);
        out.put("polling", answer.getCode() + " " + answer.getExtFields());
        admin.setMessageRequestMode(address, "asked", group("asked"), MessageRequestMode.POP, 8, 10_000);
        Set<MessageQueueAssignment> assigned = api.queryAssignment(address, "asked", group("asked"), "nobody@1", "AVG",
            MessageModel.CLUSTERING, 5_000);
        out.put("assignment of nobody", assigned == null ? "none" : String.valueOf(assigned.size()));
        admin.setMessageRequestMode(address, "asked", group("asked"), MessageRequestMode.PULL, 0, 10_000);
    }

    static void refused() throws Exception {
        topic("refused", 1);
        send("refused", "x", "A", null, 0);
        out.put("too many", refusal(() -> pop("refused", 33, LONG, false, null, "*", "TAG")));
        out.put("no topic", refusal(() -> pop("nope", 1, LONG, false, null, "*", "TAG")));
        out.put("bad sql", refusal(() -> pop("refused", 1, LONG, false, null, "a BETWEEN", "SQL92")));
        MessageExt found = pop("refused", 1, LONG, false, null, "*", "TAG").get(0);
        AckMessageRequestHeader header = header("refused", found, found.getProperty(MessageConst.PROPERTY_POP_CK));
        header.setOffset(header.getOffset() + 100);
        out.put("no such offset", String.valueOf(invoke(RequestCode.ACK_MESSAGE, header).getCode()));
        header.setOffset(header.getOffset() - 100);
        header.setQueueId(9);
        out.put("no such queue", String.valueOf(invoke(RequestCode.ACK_MESSAGE, header).getCode()));
        header.setQueueId(0);
        header.setTopic("nope");
        out.put("ack without a topic", String.valueOf(invoke(RequestCode.ACK_MESSAGE, header).getCode()));
    }

    // Each call

    interface Call {
        Object run() throws Exception;
    }

    static String refusal(Call call) throws Exception {
        try {
            call.run();
            return "none";
        } catch (Exception e) {
            Throwable cause = e;
            while (cause.getCause() != null && !(cause instanceof MQBrokerException)) {
                cause = cause.getCause();
            }
            return cause instanceof MQBrokerException
                ? String.valueOf(((MQBrokerException) cause).getResponseCode()) : cause.toString();
        }
    }

    static void topic(String name, int queues) throws Exception {
        admin.createAndUpdateTopicConfig(address, new TopicConfig(name, queues, queues));
        group(name);
        for (int i = 0; i < 200; i++) {
            try {
                admin.examineTopicRouteInfo(name);
                return;
            } catch (Exception e) {
                Thread.sleep(100);
            }
        }
    }

    static final Map<String, String> groups = new HashMap<>();

    static String group(String topic) throws Exception {
        String name = "G_" + topic;
        if (groups.put(topic, name) == null) {
            SubscriptionGroupConfig config = new SubscriptionGroupConfig();
            config.setGroupName(name);
            admin.createAndUpdateSubscriptionGroupConfig(address, config);
        }
        return name;
    }

    static MessageQueue queue(String topic, int number) {
        return new MessageQueue(topic, broker, number);
    }

    static void send(String topic, String body, String tag, String color, int queue) throws Exception {
        Message message = new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
        if (color != null) {
            message.putUserProperty("color", color);
        }
        producer.send(message, queue(topic, queue), 20_000);
    }

    static List<MessageExt> pop(String topic, int number, long invisible, boolean order, String attempt, String expression,
        String type) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group(topic));
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(number);
        header.setInvisibleTime(invisible);
        header.setPollTime(0);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType(type);
        header.setExp(expression);
        header.setOrder(order);
        header.setAttemptId(attempt);
        CompletableFuture<PopResult> future = new CompletableFuture<>();
        api.popMessageAsync(broker, address, header, 30_000, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                future.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                future.completeExceptionally(error);
            }
        });
        List<MessageExt> found = future.get(40, TimeUnit.SECONDS).getMsgFoundList();
        return found == null ? new ArrayList<>() : found;
    }

    static List<MessageExt> last;

    /** Pop until so many came. */
    static List<MessageExt> await(String topic, int count) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        long until = System.currentTimeMillis() + 60_000;
        while (found.size() < count && System.currentTimeMillis() < until) {
            found.addAll(pop(topic, 32, LONG, false, null, "*", "TAG"));
            Thread.sleep(100);
        }
        last = found;
        return found;
    }

    /** How often what came last was given out before; it is done then. */
    static Map<String, Integer> times(String topic) throws Exception {
        Map<String, Integer> found = new TreeMap<>();
        for (MessageExt message : last) {
            found.put(text(message), message.getReconsumeTimes());
            ack(topic, message);
        }
        return found;
    }

    static AckMessageRequestHeader header(String topic, MessageExt message, String handle) throws Exception {
        String[] parts = ExtraInfoUtil.split(handle);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(group(topic));
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group(topic)));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(handle);
        return header;
    }

    static String ack(String topic, MessageExt message) throws Exception {
        return ack(topic, message, message.getProperty(MessageConst.PROPERTY_POP_CK));
    }

    static String ack(String topic, MessageExt message, String handle) throws Exception {
        CompletableFuture<AckResult> future = new CompletableFuture<>();
        api.ackMessageAsync(address, 10_000, Pop.callback(future), header(topic, message, handle));
        return String.valueOf(future.get(20, TimeUnit.SECONDS).getStatus());
    }

    static String batchAck(String topic, List<MessageExt> messages) throws Exception {
        CompletableFuture<AckResult> future = new CompletableFuture<>();
        List<String> handles = messages.stream().map(one -> one.getProperty(MessageConst.PROPERTY_POP_CK))
            .collect(Collectors.toList());
        api.batchAckMessageAsync(address, 10_000, Pop.callback(future), topic, group(topic), handles);
        return String.valueOf(future.get(20, TimeUnit.SECONDS).getStatus());
    }

    /** The new handle, or none. */
    static String change(String topic, MessageExt message, long invisible) throws Exception {
        String handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
        AckMessageRequestHeader place = header(topic, message, handle);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(place.getConsumerGroup());
        header.setTopic(place.getTopic());
        header.setQueueId(place.getQueueId());
        header.setOffset(place.getOffset());
        header.setExtraInfo(handle);
        header.setInvisibleTime(invisible);
        CompletableFuture<AckResult> future = new CompletableFuture<>();
        api.changeInvisibleTimeAsync(broker, address, header, 10_000, Pop.callback(future));
        String changed = future.get(20, TimeUnit.SECONDS).getExtraInfo();
        return changed == null ? "none" : changed;
    }

    static String notification(String topic) throws Exception {
        NotificationRequestHeader header = new NotificationRequestHeader();
        header.setConsumerGroup(group(topic));
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setPollTime(0);
        header.setBornTime(System.currentTimeMillis());
        header.setOrder(false);
        RemotingCommand answer = invoke(RequestCode.NOTIFICATION, header);
        return answer.getCode() + " " + answer.getExtFields().get("hasMsg");
    }

    static RemotingCommand invoke(int code, CommandCustomHeader header) throws Exception {
        return api.getRemotingClient().invokeSync(address, RemotingCommand.createRequestCommand(code, header), 10_000);
    }

    static MessageExt find(List<MessageExt> messages, String body) {
        return messages.stream().filter(one -> text(one).equals(body)).findFirst().get();
    }

    static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(PopCalls::text).sorted().collect(Collectors.toList());
    }
}
