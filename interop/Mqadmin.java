import com.alibaba.fastjson2.JSON;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin verbs in one process: a JSON array of arguments a line in, a JSON object with the output a line out. */
public class Mqadmin {
    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] verb = JSON.parseArray(line).toArray(String.class);
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            PrintStream captured = new PrintStream(output, true, "UTF-8");
            PrintStream errors = System.err;
            System.setOut(captured);
            System.setErr(captured);
            Throwable failure = null;
            try {
                MQAdminStartup.main0(verb, null);
            } catch (Throwable t) {
                failure = t;
            } finally {
                System.setOut(answers);
                System.setErr(errors);
            }
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("verb", verb);
            answer.put("output", output.toString("UTF-8"));
            answer.put("failure", failure == null ? null : failure.toString());
            answers.println(JSON.toJSONString(answer));
            answers.flush();
        }
        System.exit(0);
    }
}
