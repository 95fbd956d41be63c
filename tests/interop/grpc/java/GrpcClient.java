import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The official Java client of RocketMQ 5: each kind of message, sent and received. Prints one line of JSON.
 *
 * usage: GrpcClient host:port tls|plain step,… [access-key secret-key]
 */
public final class GrpcClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int COUNT = 20;
    private static final long LIMIT_MS = 120_000;
    private static final Duration INVISIBLE = Duration.ofSeconds(10);
    private static ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        var builder = ClientConfiguration.newBuilder().setEndpoints(args[0]);
        if (args[1].equals("plain")) {
            builder.enableSsl(false); // which the first clients of RocketMQ 5 do not have: they speak TLS
        }
        if (args.length > 4) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(args[3], args[4]));
        }
        configuration = builder.build();
        Map<String, String> reports = new ConcurrentHashMap<>();
        List<Thread> threads = new ArrayList<>();
        for (String step : args[2].split(",")) {
            Thread thread = new Thread(() -> reports.put(step, report(step)));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        List<String> parts = new ArrayList<>();
        reports.forEach((step, report) -> parts.add("\"" + step + "\":" + report));
        System.out.println("{" + String.join(",", parts) + "}");
        System.exit(0);
    }

    private static String report(String step) {
        try {
            return switch (step) {
                case "normal" -> normal();
                case "sql" -> sql();
                case "push" -> push();
                case "fifo" -> fifo();
                case "transaction" -> transaction();
                case "dead" -> dead();
                case "refused" -> refused();
                default -> throw new IllegalArgumentException(step);
            };
        } catch (Throwable error) {
            error.printStackTrace();
            return map(Map.of("error", error.toString().replace('"', ' ')));
        }
    }

    private static String normal() throws Exception {
        try (SimpleConsumer consumer = simple("java-normal", "java-g-normal", new FilterExpression("odd"))) {
            try (Producer producer = producer("java-normal")) {
                for (int number = 0; number < COUNT; number++) {
                    producer.send(message("java-normal", number).build());
                }
            }
            List<String> found = new ArrayList<>();
            Map<String, String> properties = new TreeMap<>();
            receive(consumer, COUNT / 2, found, properties);
            Collections.sort(found);
            return ("{\"bodies\":" + texts(found) + ",\"properties\":" + map(properties) + "}");
        }
    }

    private static String sql() throws Exception {
        FilterExpression wanted = new FilterExpression("number > 16", FilterExpressionType.SQL92);
        try (SimpleConsumer consumer = simple("java-sql", "java-g-sql", wanted)) {
            try (Producer producer = producer("java-sql")) {
                for (int number = 0; number < COUNT; number++) {
                    producer.send(message("java-sql", number).build());
                }
            }
            List<String> found = new ArrayList<>();
            receive(consumer, 3, found, new TreeMap<>());
            Collections.sort(found);
            return ("{\"bodies\":" + texts(found) + "}");
        }
    }

    private static String push() throws Exception {
        Map<String, Integer> times = new ConcurrentHashMap<>();
        try (PushConsumer consumer = pushed("java-push", "java-g-push", times, 1)) {
            try (Producer producer = producer("java-push")) {
                for (int number = 0; number < 3; number++) {
                    producer.send(message("java-push", number).build());
                }
            }
            await(() -> times.size() == 3 && times.values().stream().allMatch(each -> each >= 2));
        }
        Map<String, String> told = new TreeMap<>();
        times.forEach((body, number) -> told.put(body, String.valueOf(number)));
        return ("{\"times\":" + map(told) + "}");
    }

    private static String fifo() throws Exception {
        List<String> order = Collections.synchronizedList(new ArrayList<>());
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("java-g-fifo").setSubscriptionExpressions(Map.of("java-fifo", FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                order.add(body(view));
                return ConsumeResult.SUCCESS;
            }).build()) {
            try (Producer producer = producer("java-fifo")) {
                for (int number = 0; number < COUNT; number++) {
                    producer.send(message("java-fifo", number).setMessageGroup("group-" + number % 2).build());
                }
            }
            await(() -> order.size() >= COUNT);
        }
        return ("{\"order\":" + texts(new ArrayList<>(order)) + "}");
    }

    private static String transaction() throws Exception {
        List<String> asked = Collections.synchronizedList(new ArrayList<>());
        List<String> found = new ArrayList<>();
        try (SimpleConsumer consumer = simple("java-txn", "java-g-txn", FilterExpression.SUB_ALL);
            Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("java-txn")
                .setTransactionChecker(view -> {
                    asked.add(body(view));
                    return TransactionResolution.COMMIT;
                }).build()) {
            for (int number = 0; number < 3; number++) {
                Transaction begun = producer.beginTransaction();
                producer.send(message("java-txn", number).build(), begun);
                if (number == 0) {
                    begun.commit();
                } else if (number == 1) {
                    begun.rollback();
                }
            }
            receive(consumer, 2, found, new TreeMap<>());
        }
        Collections.sort(found);
        return ("{\"bodies\":" + texts(found) + ",\"asked\":" + texts(new ArrayList<>(asked)) + "}");
    }

    /** A message that always fails, in a group that tries twice, becomes a dead letter. */
    private static String dead() throws Exception {
        Map<String, Integer> times = new ConcurrentHashMap<>();
        List<String> letters = new ArrayList<>();
        try (PushConsumer consumer = pushed("java-dead", "java-g-dead", times, 100)) {
            try (Producer producer = producer("java-dead")) {
                producer.send(message("java-dead", 0).build());
            }
            await(() -> times.getOrDefault("java-dead 0", 0) >= 2);
            await(() -> read("%DLQ%java-g-dead", letters));
        }
        return ("{\"times\":" + times.get("java-dead 0") + ",\"letters\":" + texts(letters) + "}");
    }

    private static boolean read(String topic, List<String> found) {
        try (SimpleConsumer consumer = simple(topic, "java-g-letters", FilterExpression.SUB_ALL)) {
            receive(consumer, 1, found, new TreeMap<>());
        } catch (Exception error) {
            return false; // there are no dead letters yet
        }
        return !found.isEmpty();
    }

    private static String refused() throws Exception {
        Map<String, String> errors = new TreeMap<>();
        try (Producer producer = producer("java-normal")) {
            try {
                producer.send(message("java-fifo", 1).build());
                errors.put("type", "taken");
            } catch (Exception error) {
                errors.put("type", error.getClass().getSimpleName());
            }
            try {
                producer.send(message("java-nowhere", 1).build());
                errors.put("topic", "taken");
            } catch (Exception error) {
                errors.put("topic", error.getClass().getSimpleName());
            }
        } catch (Throwable error) {
            errors.put("start", error.getClass().getSimpleName());
        }
        return (map(errors));
    }

    private static Producer producer(String... topics) throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topics).build();
    }

    private static SimpleConsumer simple(String topic, String group, FilterExpression expression) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of(topic, expression)).build();
        consumer.receive(1, INVISIBLE); // the group has offsets from here
        return consumer;
    }

    private static PushConsumer pushed(String topic, String group, Map<String, Integer> times, int fails)
        throws ClientException {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> times.merge(body(view), 1, Integer::sum) <= fails
                ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS).build();
    }

    private static MessageBuilder message(String topic, int number) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setTag(number % 2 == 0 ? "even" : "odd")
            .setKeys("key-" + number).addProperty("number", String.valueOf(number)).addProperty("名", "值")
            .setBody((topic + " " + number).getBytes(StandardCharsets.UTF_8));
    }

    private static void receive(SimpleConsumer consumer, int count, List<String> found, Map<String, String> last)
        throws ClientException {
        long deadline = System.currentTimeMillis() + LIMIT_MS;
        while (found.size() < count && System.currentTimeMillis() < deadline) {
            for (MessageView view : consumer.receive(32, INVISIBLE)) {
                found.add(body(view));
                last.putAll(view.getProperties());
                consumer.ack(view);
            }
        }
    }

    private interface Condition {
        boolean holds();
    }

    private static void await(Condition condition) throws InterruptedException {
        long deadline = System.currentTimeMillis() + LIMIT_MS;
        while (!condition.holds() && System.currentTimeMillis() < deadline) {
            Thread.sleep(50);
        }
    }

    private static String body(MessageView view) {
        ByteBuffer body = view.getBody();
        return StandardCharsets.UTF_8.decode(body).toString();
    }

    private static String texts(List<String> values) {
        return values.isEmpty() ? "[]" : "[\"" + String.join("\",\"", values) + "\"]";
    }

    private static String map(Map<String, String> values) {
        List<String> parts = new ArrayList<>();
        values.forEach((name, value) -> parts.add("\"" + name + "\":\"" + value + "\""));
        return "{" + String.join(",", parts) + "}";
    }
}
