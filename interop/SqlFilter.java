import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.ExpressionMessageFilter;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

/**
 * Java's own filter, asked by tests and benchmarks. Requests are JSON lines on standard input, answers are
 * lines that begin with "> ": the loggers of the broker write to standard output too.
 *
 * evaluate         first line: array of property maps; each further line: an expression as a JSON string.
 *                  Answer: "P" if it does not parse, else a letter for each map: T true, F false, N null, E error.
 * bloom            {"f":20,"n":32,"texts":[...]} a line. Answer: {"k":..,"m":..,"positions":[[...],...]}.
 * decode           a consumerFilter.json, on one line. Answer: what ConsumerFilterManager makes of it, encoded again.
 * bench            {"log":FILE,"end":N,"seconds":S,"expression":..} a line. Answer: {"matched":..,"rate":..}.
 */
public class SqlFilter {

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        List<Map<String, String>> maps = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            switch (args.length == 1 ? args[0] : "") {
                case "evaluate":
                    if (maps == null) {
                        maps = maps(JSON.parseArray(line));
                        continue;
                    }
                    answer = evaluate((String) JSON.parse(line), maps);
                    break;
                case "bloom":
                    answer = bloom(JSON.parseObject(line));
                    break;
                case "decode":
                    ConsumerFilterManager manager = new ConsumerFilterManager();
                    manager.decode(line);
                    answer = manager.encode();
                    break;
                case "bench":
                    answer = bench(JSON.parseObject(line));
                    break;
                default:
                    System.err.println("usage: SqlFilter evaluate|bloom|decode|bench, requests on standard input");
                    System.exit(2);
                    return;
            }
            out.append("> ").append(answer).append('\n');
        }
        System.out.write(out.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
        System.exit(0);
    }

    private static List<Map<String, String>> maps(JSONArray array) {
        List<Map<String, String>> maps = new ArrayList<>();
        for (int i = 0; i < array.size(); i++) {
            Map<String, String> map = new HashMap<>();
            JSONObject object = array.getJSONObject(i);
            for (String name : object.keySet()) {
                map.put(name, object.getString(name));
            }
            maps.add(map);
        }
        return maps;
    }

    private static String evaluate(String text, List<Map<String, String>> maps) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(text);
        } catch (Throwable e) {
            return "P";
        }
        StringBuilder letters = new StringBuilder();
        for (Map<String, String> map : maps) {
            letters.append(letter(expression, map));
        }
        return letters.toString();
    }

    private static char letter(Expression expression, Map<String, String> map) {
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(map));
            return value == null ? 'N' : Boolean.TRUE.equals(value) ? 'T' : 'F';
        } catch (Throwable e) {
            return 'E';
        }
    }

    private static String bloom(JSONObject request) {
        BloomFilter filter = BloomFilter.createByFn(request.getIntValue("f"), request.getIntValue("n"));
        List<int[]> positions = new ArrayList<>();
        for (Object text : request.getJSONArray("texts")) {
            positions.add(filter.calcBitPositions((String) text));
        }
        JSONObject answer = new JSONObject();
        answer.put("k", filter.getK());
        answer.put("m", filter.getM());
        answer.put("positions", positions);
        return answer.toString(JSONWriter.Feature.WriteNulls);
    }

    private static String bench(JSONObject request) throws Exception {
        List<ByteBuffer> records = records(request.getString("log"), request.getLongValue("end"));
        String expression = request.getString("expression");
        SubscriptionData subscription = FilterAPI.build("bench", expression, ExpressionType.SQL92);
        ExpressionMessageFilter filter = new ExpressionMessageFilter(subscription,
            ConsumerFilterManager.build("bench", "g", expression, ExpressionType.SQL92, 1L), new ConsumerFilterManager());
        double seconds = request.getDoubleValue("seconds");
        run(records, filter, seconds); // the compiler of the JVM warms up
        return run(records, filter, seconds);
    }

    private static List<ByteBuffer> records(String path, long end) throws Exception {
        List<ByteBuffer> records = new ArrayList<>();
        try (RandomAccessFile file = new RandomAccessFile(path, "r")) {
            ByteBuffer log = file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, end);
            for (int at = 0; at < end; at += log.getInt(at)) {
                log.limit(at + log.getInt(at)).position(at);
                records.add(log.slice());
                log.limit((int) end);
            }
        }
        return records;
    }

    private static String run(List<ByteBuffer> records, ExpressionMessageFilter filter, double seconds) {
        long matched = 0, rounds = 0, start = System.nanoTime(), elapsed;
        do {
            matched = 0;
            for (ByteBuffer record : records) {
                if (filter.isMatchedByCommitLog(record, null)) {
                    matched++;
                }
            }
            rounds++;
            elapsed = System.nanoTime() - start;
        } while (elapsed < seconds * 1e9);
        return String.format("{\"matched\":%d,\"rate\":%.1f}", matched, rounds * records.size() / (elapsed / 1e9));
    }
}
