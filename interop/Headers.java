import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.annotation.CFNotNull;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Java's own reader of headers, asked by tests. Requests are JSON lines on standard input, answers are lines that
 * begin with "> ": the loggers write to standard output too. Classes are named without their package.
 *
 * {"class":C}              Answer: {"name":[type, required],...}, the fields of the class.
 * {"class":C,"frame":F}    F is a frame without its length, in base64. Answer: {"name":value,...}, what the header
 *                          holds, with null for what it does not, or {"refused":exception}.
 */
public class Headers {
    private static final String ROOT = "org.apache.rocketmq.remoting.protocol.header";
    private static final String[] PACKAGES = {"", ".namesrv"};

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject request = JSON.parseObject(line);
            Class<? extends CommandCustomHeader> type = find(request.getString("class"));
            String frame = request.getString("frame");
            JSONObject answer = frame == null ? describe(type) : decode(type, Base64.getDecoder().decode(frame));
            out.append("> ").append(answer.toString(JSONWriter.Feature.WriteNulls)).append('\n');
        }
        System.out.write(out.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
        System.exit(0);
    }

    private static Class<? extends CommandCustomHeader> find(String name) throws ClassNotFoundException {
        for (String part : PACKAGES) {
            try {
                return Class.forName(ROOT + part + "." + name).asSubclass(CommandCustomHeader.class);
            } catch (ClassNotFoundException e) {
                // in another package
            }
        }
        throw new ClassNotFoundException(name);
    }

    private static JSONObject describe(Class<?> type) {
        JSONObject found = new JSONObject();
        for (Class<?> level = type; level != Object.class; level = level.getSuperclass()) {
            for (Field field : level.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())) {
                    boolean required = field.getAnnotation(CFNotNull.class) != null;
                    found.put(field.getName(), JSONArray.of(field.getType().getSimpleName(), required));
                }
            }
        }
        return found;
    }

    private static JSONObject decode(Class<? extends CommandCustomHeader> type, byte[] frame) throws Exception {
        CommandCustomHeader header;
        try {
            header = RemotingCommand.decode(frame).decodeCommandCustomHeader(type);
        } catch (Exception e) {
            return JSONObject.of("refused", e.toString());
        }
        JSONObject found = new JSONObject();
        for (Class<?> level = header.getClass(); level != Object.class; level = level.getSuperclass()) {
            for (Field field : level.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())) {
                    field.setAccessible(true);
                    Object value = field.get(header);
                    found.put(field.getName(), value instanceof Enum ? value.toString() : value);
                }
            }
        }
        return found;
    }
}
