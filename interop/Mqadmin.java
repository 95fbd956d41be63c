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
    private static String[] current; // the verb that runs; some end the process when their arguments are wrong
    private static ByteArrayOutputStream output;

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            if (current != null) {
                answer(answers, "ended the process");
            }
        }));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] verb = JSON.parseArray(line).toArray(String.class);
            current = verb;
            output = new ByteArrayOutputStream();
            PrintStream captured = new PrintStream(output, true, "UTF-8");
            PrintStream errors = System.err;
            System.setOut(captured);
            System.setErr(captured);
            String failure = null;
            try {
                MQAdminStartup.main0(verb, null);
            } catch (Throwable t) {
                failure = t.toString();
            } finally {
                System.setOut(answers);
                System.setErr(errors);
            }
            answer(answers, failure);
            current = null;
        }
        System.exit(0);
    }
    private static void answer(PrintStream answers, String failure) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("verb", current);
        answer.put("output", new String(output.toByteArray(), StandardCharsets.UTF_8));
        answer.put("failure", failure);
        answers.println(JSON.toJSONString(answer));
        answers.flush();
    }
}
