import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * What a message costs Java's client: ClientBench send|threads|consume NAMESRV TOPIC COUNT SIZE IN_FLIGHT.
 * "send" is asynchronous; "threads" has IN_FLIGHT threads that wait for each answer. It warms up with a fifth of the count, and prints {"rate": messages a second, "cpu_us": of this process}.
 */
public class ClientBench {
    static final OperatingSystemMXBean OS = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] a) throws Exception {
        int count = Integer.parseInt(a[3]);
        if (!a[0].equals("consume")) {
            send(a[0].equals("threads"), a[1], a[2], count, Integer.parseInt(a[4]), Integer.parseInt(a[5]));
        } else {
            consume(a[1], a[2], count);
        }
        System.exit(0);
    }

    static void report(long count, long nanos, long cpuNanos) {
        System.out.printf("{\"rate\":%.0f,\"cpu_us\":%.2f}%n", count * 1e9 / nanos, cpuNanos / 1e3 / count);
    }

    static void send(boolean threads, String namesrv, String topic, int count, int size, int inFlight)
            throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench_java");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10000);
        producer.start();
        byte[] body = new byte[size];
        run(threads, producer, topic, body, count / 5, inFlight);
        long start = System.nanoTime();
        long cpu = OS.getProcessCpuTime();
        run(threads, producer, topic, body, count, inFlight);
        report(count, System.nanoTime() - start, OS.getProcessCpuTime() - cpu);
    }

    static void run(boolean threads, DefaultMQProducer producer, String topic, byte[] body, int count, int inFlight)
            throws Exception {
        if (threads) {
            waiting(producer, topic, body, count, inFlight);
        } else {
            pipelined(producer, topic, body, count, inFlight);
        }
    }

    static void waiting(DefaultMQProducer producer, String topic, byte[] body, int count, int threads)
            throws Exception {
        AtomicLong left = new AtomicLong(count);
        AtomicLong failures = new AtomicLong();
        Thread[] all = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            all[i] = new Thread(() -> {
                while (left.getAndDecrement() > 0) {
                    try {
                        producer.send(new Message(topic, "paid", "k", body));
                    } catch (Exception e) {
                        failures.incrementAndGet();
                    }
                }
            });
            all[i].start();
        }
        for (Thread one : all) {
            one.join();
        }
        if (failures.get() > 0) {
            throw new IllegalStateException(failures.get() + " sends failed");
        }
    }

    static void pipelined(DefaultMQProducer producer, String topic, byte[] body, int count, int inFlight)
            throws Exception {
        Semaphore permits = new Semaphore(inFlight);
        AtomicLong failures = new AtomicLong();
        SendCallback done = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                permits.release();
            }

            @Override
            public void onException(Throwable e) {
                failures.incrementAndGet();
                permits.release();
            }
        };
        for (int i = 0; i < count; i++) {
            permits.acquire();
            producer.send(new Message(topic, "paid", "k", body), done);
        }
        permits.acquire(inFlight);
        if (failures.get() > 0) {
            throw new IllegalStateException(failures.get() + " sends failed");
        }
    }

    static void consume(String namesrv, String topic, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_java_" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        AtomicLong seen = new AtomicLong();
        int warm = count / 5;
        long[] began = new long[2];
        CountDownLatch all = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long before = seen.getAndAdd(messages.size());
            long now = before + messages.size();
            if (before < warm && now >= warm) {
                began[0] = System.nanoTime();
                began[1] = OS.getProcessCpuTime();
            }
            if (before < count && now >= count) {
                report(now - warm, System.nanoTime() - began[0], OS.getProcessCpuTime() - began[1]);
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        all.await();
    }
}
