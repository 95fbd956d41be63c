import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store directory in place with DefaultMessageStore, appends messages and closes it again.
 *
 * StoreWrite STOREDIR COMMITLOG_FILE_SIZE CQ_FILE_SIZE HASH_SLOTS INDEX_NUM TOPIC COUNT
 *
 * Prints "put physicalOffset queueId queueOffset" for each message, then "closed". The body of message i is
 * "java-i", its key "java-key-i", its tag "java"; it goes to queue i % 4.
 */
public class StoreWrite {

    public static void main(String[] args) throws Exception {
        if (args.length != 7) {
            System.err.println("usage: StoreWrite STOREDIR COMMITLOG_FILE_SIZE CQ_FILE_SIZE HASH_SLOTS INDEX_NUM"
                + " TOPIC COUNT");
            System.exit(2);
        }
        Path root = Paths.get(args[0]).toAbsolutePath();
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMaxHashSlotNum(Integer.parseInt(args[3]));
        config.setMaxIndexNum(Integer.parseInt(args[4]));
        config.setTimerWheelEnable(false);
        config.setHaListenPort(0);
        config.setDiskMaxUsedSpaceRatio(99);
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("write", true), null,
            new BrokerConfig(), new ConcurrentHashMap<>());
        if (!store.load()) {
            System.err.println("the store does not load");
            Runtime.getRuntime().halt(1);
        }
        store.start();
        int count = Integer.parseInt(args[6]);
        for (int i = 0; i < count; i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(args[5]);
            message.setQueueId(i % 4);
            message.setBody(("java-" + i).getBytes(StandardCharsets.UTF_8));
            message.setKeys("java-key-" + i);
            message.setTags("java");
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode("java"));
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(new InetSocketAddress("127.0.0.1", 1));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 2));
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) {
                System.err.println("not stored: " + result.getPutMessageStatus());
                Runtime.getRuntime().halt(1);
            }
            System.out.println("put " + result.getAppendMessageResult().getWroteOffset() + " " + message.getQueueId() + " "
                + result.getAppendMessageResult().getLogicsOffset());
        }
        store.shutdown();
        System.out.println("closed");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
