import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.body.AclInfo;
import org.apache.rocketmq.remoting.protocol.body.UserInfo;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Users and access control lists by the real Java client and its hook that signs requests.
 *
 * `Access HOST:PORT BROKER_ADDRESS [LAST STEP]`: the super user is admin, its secret 12345678. Prints a JSON object
 * of what did not fit, by step.
 */
public class Access {

    interface Step {
        void run(List<String> problems) throws Exception;
    }

    static String namesrv;
    static String broker;
    static int number;
    static String last;

    static RPCHook hook(String user, String secret) {
        return user == null ? null : new AclClientRPCHook(new SessionCredentials(user, secret));
    }

    static DefaultMQAdminExt admin(String user, String secret) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(hook(user, secret), 5000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("admin" + ++number);
        admin.start();
        return admin;
    }

    /** "ok", or why not. */
    static String send(String user, String secret, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("P" + ++number, hook(user, secret));
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("producer" + number);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        try {
            byte[] body = ("by " + user).getBytes(StandardCharsets.UTF_8);
            return producer.send(new Message(topic, body), 5000).getSendStatus() == SendStatus.SEND_OK ? "ok" : "not ok";
        } catch (MQClientException e) {
            return "CODE: " + e.getResponseCode() + " " + e.getMessage();
        } finally {
            producer.shutdown();
        }
    }

    static boolean consume(String user, String secret, String topic, String group, int seconds) throws Exception {
        CountDownLatch seen = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook(user, secret));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("consumer" + ++number);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            seen.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            return seen.await(seconds, TimeUnit.SECONDS);
        } finally {
            consumer.shutdown();
        }
    }

    static void refused(List<String> problems, String what, String answer) {
        if (!answer.contains("CODE: 16")) {
            problems.add(what + ": " + answer);
        }
    }

    static void expect(List<String> problems, String what, Object wanted, Object found) {
        if (!wanted.equals(found)) {
            problems.add(what + ": " + found + " instead of " + wanted);
        }
    }

    static AclInfo acl(String resource, String action, String decision, List<String> ips) {
        return AclInfo.of("User:app", Collections.singletonList(resource), Collections.singletonList(action), ips, decision);
    }

    static String asAdmin(String user, String secret, Step step) throws Exception {
        DefaultMQAdminExt admin = admin(user, secret);
        try {
            step.run(null);
            admin.createAndUpdateTopicConfig(broker, new TopicConfig("made-by-" + user));
            return "ok";
        } catch (Exception e) {
            return String.valueOf(e.getMessage());
        } finally {
            admin.shutdown();
        }
    }

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        broker = args[1];
        last = args.length > 2 ? args[2] : null;
        JSONObject report = new JSONObject();
        DefaultMQAdminExt admin = admin("admin", "12345678");

        step(report, "users", problems -> {
            admin.createUser(broker, "app", "app-secret", "Normal");
            UserInfo user = admin.getUser(broker, "app");
            expect(problems, "type", "Normal", user.getUserType());
            expect(problems, "status", "enable", user.getUserStatus());
            admin.createUser(broker, "gone", "gone-secret", "Normal");
            expect(problems, "list", 3, admin.listUser(broker, "").size());
            expect(problems, "filter", 1, admin.listUser(broker, "gon").size());
            admin.deleteUser(broker, "gone");
            expect(problems, "after delete", 2, admin.listUser(broker, "").size());
            try {
                admin.createUser(broker, "app", "x", "Normal");
                problems.add("a user was created twice");
            } catch (Exception e) {
                refused(problems, "twice", e.getMessage());
            }
        });
        step(report, "topics", problems -> {
            for (String topic : new String[] {"mine", "mine-too", "theirs"}) {
                TopicConfig config = new TopicConfig(topic);
                config.setReadQueueNums(2);
                config.setWriteQueueNums(2);
                admin.createAndUpdateTopicConfig(broker, config);
            }
            Thread.sleep(1500);
        });
        step(report, "signatures", problems -> {
            refused(problems, "nobody", send(null, null, "mine"));
            refused(problems, "a stranger", send("stranger", "x", "mine"));
            refused(problems, "a wrong secret", send("admin", "wrong", "mine"));
            expect(problems, "the super user", "ok", send("admin", "12345678", "mine"));
        });
        step(report, "nothing is allowed", problems -> {
            refused(problems, "send", send("app", "app-secret", "mine"));
            refused(problems, "a topic", asAdmin("app", "app-secret", p -> { }));
        });
        step(report, "send", problems -> {
            admin.createAcl(broker, acl("Topic:mine*", "Pub", "Allow", null));
            expect(problems, "mine", "ok", send("app", "app-secret", "mine"));
            expect(problems, "mine-too", "ok", send("app", "app-secret", "mine-too"));
            refused(problems, "theirs", send("app", "app-secret", "theirs"));
        });
        step(report, "deny", problems -> {
            admin.createAcl(broker, acl("Topic:mine-too", "Pub", "Deny", null));
            refused(problems, "mine-too", send("app", "app-secret", "mine-too"));
            expect(problems, "mine", "ok", send("app", "app-secret", "mine"));
            AclInfo found = admin.getAcl(broker, "User:app");
            expect(problems, "entries", 2, found.getPolicies().get(0).getEntries().size());
            expect(problems, "list", 1, admin.listAcl(broker, "", "mine-too").size());
            admin.deleteAcl(broker, "User:app", "Topic:mine-too");
            expect(problems, "mine-too again", "ok", send("app", "app-secret", "mine-too"));
        });
        step(report, "addresses", problems -> {
            admin.updateAcl(broker, acl("Topic:mine*", "Pub", "Allow", Collections.singletonList("10.0.0.0/8")));
            refused(problems, "from elsewhere", send("app", "app-secret", "mine"));
            admin.updateAcl(broker, acl("Topic:mine*", "Pub", "Allow", Collections.singletonList("127.0.0.0/8")));
            expect(problems, "from here", "ok", send("app", "app-secret", "mine"));
        });
        step(report, "consume", problems -> {
            expect(problems, "without", false, consume("app", "app-secret", "mine", "readers", 3));
            admin.createAcl(broker, acl("Topic:mine", "Sub", "Allow", null));
            admin.createAcl(broker, acl("Group:readers", "Sub", "Allow", null));
            expect(problems, "with", true, consume("app", "app-secret", "mine", "readers", 40));
        });
        step(report, "a super user", problems -> {
            admin.updateUser(broker, "app", null, "Super", null);
            expect(problems, "theirs", "ok", send("app", "app-secret", "theirs"));
            admin.updateUser(broker, "app", null, "Normal", "disable");
            refused(problems, "disabled", send("app", "app-secret", "mine"));
        });
        admin.shutdown();
        System.out.println(report);
    }

    static void step(JSONObject report, String name, Step step) {
        if (last != null && report.containsKey(last)) {
            return;
        }
        List<String> problems = new ArrayList<>();
        try {
            step.run(problems);
        } catch (Exception e) {
            problems.add(String.valueOf(e));
        }
        report.put(name, problems);
    }
}
