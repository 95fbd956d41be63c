import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Java's own strategies, asked by tests. Requests are JSON lines on standard input, answers are lines that
 * begin with "> ":
 *
 * {"strategy":"AVG","client":..,"clients":[..],"queues":[["topic","broker",0],..],"rooms":[..],"nodes":10,
 *  "inner":"AVG"}
 *
 * "rooms" is for MACHINE_ROOM, "nodes" for CONSISTENT_HASH, "inner" for MACHINE_ROOM_NEARBY, where the room of a
 * broker or a client is its name before the first "-". CONFIG has the first two queues. Answer:
 * {"name":..,"queues":[..]} or {"error":true}.
 */
public class Allocate {

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.append("> ").append(answer(JSON.parseObject(line))).append('\n');
        }
        System.out.write(out.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
        System.exit(0);
    }

    private static JSONObject answer(JSONObject request) {
        List<MessageQueue> queues = new ArrayList<>();
        JSONArray given = request.getJSONArray("queues");
        for (int i = 0; i < given.size(); i++) {
            JSONArray item = given.getJSONArray(i);
            queues.add(new MessageQueue(item.getString(0), item.getString(1), item.getIntValue(2)));
        }
        JSONObject answer = new JSONObject();
        try {
            AllocateMessageQueueStrategy strategy = strategy(request.getString("strategy"), request, queues);
            List<String> clients = request.getJSONArray("clients").toList(String.class);
            JSONArray found = new JSONArray();
            for (MessageQueue queue : strategy.allocate("group", request.getString("client"), queues, clients)) {
                found.add(JSONArray.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
            }
            answer.put("name", strategy.getName());
            answer.put("queues", found);
        } catch (IllegalArgumentException e) {
            answer.put("error", true);
        }
        return answer;
    }

    private static AllocateMessageQueueStrategy strategy(String name, JSONObject request, List<MessageQueue> queues) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash(request.getIntValue("nodes"));
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                byRoom.setConsumeridcs(new HashSet<>(request.getJSONArray("rooms").toList(String.class)));
                return byRoom;
            case "MACHINE_ROOM_NEARBY":
                return new AllocateMachineRoomNearby(strategy(request.getString("inner"), request, queues),
                    new AllocateMachineRoomNearby.MachineRoomResolver() {
                        @Override
                        public String brokerDeployIn(MessageQueue queue) {
                            return queue.getBrokerName().split("-", 2)[0];
                        }

                        @Override
                        public String consumerDeployIn(String client) {
                            return client.split("-", 2)[0];
                        }
                    });
            default:
                AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
                byConfig.setMessageQueueList(queues.subList(0, Math.min(2, queues.size())));
                return byConfig;
        }
    }
}
