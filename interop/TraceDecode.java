import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceTransferBean;

/**
 * Java's own reader of trace data, asked by tests. Each line on standard input is the body of a trace message as
 * a JSON string; each answer is a line that begins with "> ": an array of what TraceDataEncoder reads in it, with
 * "data", what it encodes that to again (null for what it reads less of than it writes), and "keys".
 */
public class TraceDecode {

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONArray contexts = new JSONArray();
            for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString((String) JSON.parse(line))) {
                contexts.add(describe(context));
            }
            out.append("> ").append(contexts).append('\n');
        }
        System.out.write(out.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
        System.exit(0);
    }

    private static JSONObject describe(TraceContext context) {
        JSONObject found = new JSONObject();
        found.put("type", context.getTraceType().name());
        found.put("timestamp", context.getTimeStamp());
        found.put("region", context.getRegionId());
        found.put("group", context.getGroupName());
        found.put("cost", context.getCostTime());
        found.put("success", context.isSuccess());
        found.put("request", context.getRequestId());
        found.put("code", context.getContextCode());
        TraceBean bean = context.getTraceBeans().get(0);
        found.put("topic", bean.getTopic());
        found.put("msgId", bean.getMsgId());
        found.put("offsetMsgId", bean.getOffsetMsgId());
        found.put("tags", bean.getTags());
        found.put("keys", bean.getKeys());
        found.put("storeHost", bean.getStoreHost());
        found.put("retryTimes", bean.getRetryTimes());
        found.put("bodyLength", bean.getBodyLength());
        found.put("msgType", bean.getMsgType() == null ? null : bean.getMsgType().name());
        found.put("transactionId", bean.getTransactionId());
        found.put("state", bean.getTransactionState() == null ? null : bean.getTransactionState().name());
        found.put("fromCheck", bean.isFromTransactionCheck());
        if (context.getTraceType().name().startsWith("Sub")) {
            context.setAccessChannel(org.apache.rocketmq.client.AccessChannel.LOCAL);
        }
        TraceTransferBean encoded = TraceDataEncoder.encoderFromContextBean(context);
        found.put("data", encoded.getTransData());
        found.put("encodedKeys", encoded.getTransKey());
        return found;
    }
}
