import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Consumes by POP with the real Java client.
 *
 * Pop push --namesrv A --topic T --group G --count N --fail K --timeout S: a push consumer whose group is in mode POP, until
 * each of N messages was consumed; every K-th fails the first time. Prints how often each was seen, and retries.
 * Pop raw --namesrv A --topic T --group G --order true|false --number N --invisible MS --poll MS --ack all|none|first
 * [--change MS] [--expression E]: one POP_MESSAGE, and what is acknowledged of it. Prints what came.
 */
public class Pop {
    static Map<String, String> o;
    static DefaultMQAdminExt admin;
    static String address;

    public static void main(String[] a) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        o = Interop.parse(a, 1);
        admin = Interop.admin0(o);
        address = Interop.masters(admin).get(0);
        JSONObject out = a[0].equals("push") ? push() : raw();
        System.out.println(Interop.text(out));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static JSONObject push() throws Exception {
        String topic = o.get("topic"), group = o.get("group");
        int wanted = Integer.parseInt(o.get("count")), fail = Integer.parseInt(o.getOrDefault("fail", "0"));
        admin.setMessageRequestMode(address, topic, group, MessageRequestMode.POP, 8, 10_000);
        ConcurrentHashMap<String, AtomicInteger> seen = new ConcurrentHashMap<>();
        ConcurrentHashMap<String, Integer> times = new ConcurrentHashMap<>();
        ConcurrentHashMap<String, Boolean> done = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(o.get("namesrv"));
        consumer.setInstanceName(Interop.inst());
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(Long.parseLong(o.getOrDefault("invisible", "10000")));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, o.getOrDefault("expression", "*"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                int before = seen.computeIfAbsent(body, key -> new AtomicInteger()).getAndIncrement();
                times.merge(body, message.getReconsumeTimes(), Math::max);
                if (fail > 0 && before == 0 && Math.abs(body.hashCode()) % fail == 0) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                done.put(body, true);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long until = System.currentTimeMillis() + 1000 * Long.parseLong(o.get("timeout"));
        while (done.size() < wanted && System.currentTimeMillis() < until) {
            Thread.sleep(50);
        }
        Thread.sleep(1000 * Long.parseLong(o.getOrDefault("linger", "0")));
        consumer.shutdown();
        JSONObject out = new JSONObject();
        out.put("done", done.size());
        out.put("seen", seen);
        out.put("times", times);
        return out;
    }

    static JSONObject raw() throws Exception {
        String topic = o.get("topic"), group = o.get("group");
        MQClientAPIImpl api = admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
        String broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().keySet().iterator().next();
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(Integer.parseInt(o.getOrDefault("number", "32")));
        header.setInvisibleTime(Long.parseLong(o.getOrDefault("invisible", "10000")));
        header.setPollTime(Long.parseLong(o.getOrDefault("poll", "0")));
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp(o.getOrDefault("expression", "*"));
        header.setOrder(Boolean.parseBoolean(o.getOrDefault("order", "false")));
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
        PopResult result = future.get(40, TimeUnit.SECONDS);
        JSONObject out = new JSONObject();
        out.put("status", String.valueOf(result.getPopStatus()));
        JSONArray found = new JSONArray();
        List<String> acked = new ArrayList<>();
        List<MessageExt> messages = result.getMsgFoundList() == null ? new ArrayList<>() : result.getMsgFoundList();
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            String handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
            JSONObject one = new JSONObject();
            one.put("body", body);
            one.put("topic", message.getTopic());
            one.put("times", message.getReconsumeTimes());
            one.put("handle", handle);
            found.add(one);
            String ack = o.getOrDefault("ack", "all");
            if (ack.equals("all") || ack.equals("first") && acked.isEmpty()) {
                acked.add(body + " " + end(api, broker, topic, group, message, handle));
            } else if (o.containsKey("change")) {
                acked.add(body + " " + change(api, broker, topic, group, message, handle));
            }
        }
        out.put("messages", found);
        out.put("acked", acked);
        return out;
    }

    static String end(MQClientAPIImpl api, String broker, String topic, String group, MessageExt message, String handle)
        throws Exception {
        String[] parts = ExtraInfoUtil.split(handle);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(handle);
        CompletableFuture<AckResult> future = new CompletableFuture<>();
        api.ackMessageAsync(address, 10_000, callback(future), header);
        return String.valueOf(future.get(20, TimeUnit.SECONDS).getStatus());
    }

    static String change(MQClientAPIImpl api, String broker, String topic, String group, MessageExt message, String handle)
        throws Exception {
        String[] parts = ExtraInfoUtil.split(handle);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(handle);
        header.setInvisibleTime(Long.parseLong(o.get("change")));
        CompletableFuture<AckResult> future = new CompletableFuture<>();
        api.changeInvisibleTimeAsync(broker, address, header, 10_000, callback(future));
        return String.valueOf(future.get(20, TimeUnit.SECONDS).getStatus());
    }

    static AckCallback callback(CompletableFuture<AckResult> future) {
        return new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                future.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                future.completeExceptionally(error);
            }
        };
    }
}
