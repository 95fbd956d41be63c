import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Runs mqadmin verbs in one process. In, a line each: a JSON array of arguments, or an array of such arrays, which are
 * run at once (most of a verb's time is waiting). Out: a JSON object with the output for each verb, a line each.
 * Behind "--seconds N" at the head of its arguments, a verb of an array is interrupted after that time.
 */
public class Mqadmin {
    private static String[] current; // the verb that runs; some end the process when their arguments are wrong
    private static ByteArrayOutputStream output;
    private static final InheritableThreadLocal<ByteArrayOutputStream> OWN = new InheritableThreadLocal<>();

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            if (current != null) {
                answer(answers, current, output, "ended the process");
            }
        }));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONArray read = JSON.parseArray(line);
            PrintStream errors = System.err;
            if (!read.isEmpty() && read.get(0) instanceof JSONArray) {
                try {
                    atOnce(read, answers);
                } finally {
                    System.setOut(answers);
                    System.setErr(errors);
                }
                continue;
            }
            current = read.toArray(String.class);
            output = new ByteArrayOutputStream();
            PrintStream captured = new PrintStream(output, true, "UTF-8");
            System.setOut(captured);
            System.setErr(captured);
            String failure = null;
            try {
                MQAdminStartup.main0(current, null);
            } catch (Throwable t) {
                failure = t.toString();
            } finally {
                System.setOut(answers);
                System.setErr(errors);
            }
            answer(answers, current, output, failure);
            current = null;
        }
        System.exit(0);
    }

    private static void atOnce(JSONArray verbs, PrintStream answers) throws Exception {
        Verbs.load();
        PrintStream own = new PrintStream(new ToOwner(), true, "UTF-8");
        System.setOut(own);
        System.setErr(own);
        List<Run> runs = new ArrayList<>();
        for (int i = 0; i < verbs.size(); i++) {
            Run run = new Run(verbs.getJSONArray(i).toArray(String.class));
            runs.add(run);
            run.start();
            Thread.sleep(20); // the names of their clients are the milliseconds of their start
        }
        for (Run run : runs) {
            run.join(run.millis);
            if (run.isAlive()) {
                run.interrupt();
                run.join();
            }
            answer(answers, run.verb, run.printed, run.failure);
        }
    }

    /** The verbs, which only a subclass can see. */
    private static class Verbs extends MQAdminStartup {
        static void load() {
            SUB_COMMANDS.clear();
            initCommand();
        }

        static List<SubCommand> all() {
            return SUB_COMMANDS;
        }
    }

    /** One verb, as MQAdminStartup runs it. */
    private static class Run extends Thread {
        final String[] verb;
        final long millis;
        final ByteArrayOutputStream printed = new ByteArrayOutputStream();
        String failure;

        Run(String[] arguments) {
            boolean limited = arguments[0].equals("--seconds");
            millis = limited ? Long.parseLong(arguments[1]) * 1000 : 0;
            verb = limited ? Arrays.copyOfRange(arguments, 2, arguments.length) : arguments;
            setDaemon(true);
        }

        @Override
        public void run() {
            OWN.set(printed);
            try {
                SubCommand command = null;
                for (SubCommand one : Verbs.all()) {
                    if (one.commandName().equalsIgnoreCase(verb[0])) {
                        command = one;
                    }
                }
                Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
                CommandLine line = ServerUtil.parseCmdLine("mqadmin " + verb[0],
                    Arrays.copyOfRange(verb, 1, verb.length), options, new DefaultParser());
                if (line.hasOption('n')) {
                    System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, line.getOptionValue('n'));
                }
                while (true) {
                    try {
                        command.execute(line, options, null);
                        return;
                    } catch (Exception e) {
                        Throwable cause = e;
                        while (cause.getCause() != null) {
                            cause = cause.getCause();
                        }
                        if (!String.valueOf(cause).contains("has created already")) {
                            throw e;
                        }
                        Thread.sleep(10); // another verb was started in the same millisecond
                    }
                }
            } catch (Throwable t) {
                if (millis == 0) {
                    failure = t + (t.getCause() == null ? "" : " " + t.getCause());
                }
            }
        }
    }

    /** What a thread and those that it started print. */
    private static class ToOwner extends OutputStream {
        @Override
        public void write(int b) {
            ByteArrayOutputStream own = OWN.get();
            if (own != null) {
                own.write(b);
            }
        }

        @Override
        public void write(byte[] bytes, int offset, int length) {
            ByteArrayOutputStream own = OWN.get();
            if (own != null) {
                own.write(bytes, offset, length);
            }
        }
    }

    private static void answer(PrintStream answers, String[] verb, ByteArrayOutputStream printed, String failure) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("verb", verb);
        answer.put("output", new String(printed.toByteArray(), StandardCharsets.UTF_8));
        answer.put("failure", failure);
        answers.println(JSON.toJSONString(answer));
        answers.flush();
    }
}
