import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's tools one after the other in one JVM, which takes seconds to start.
 *
 * A line of stdin is a class and its arguments, each in Base64, separated by spaces. A line of stdout is the exit
 * status and the tool's stdout and stderr in Base64. A tool that calls exit does not end the JVM.
 */
public final class ToolServer {
    /** Scala's println keeps the first System.out, so that stream stays and its target changes with each tool. */
    private static final class Switch extends OutputStream {
        private volatile ByteArrayOutputStream target = new ByteArrayOutputStream();

        @Override
        public void write(int data) {
            target.write(data);
        }

        @Override
        public void write(byte[] data, int start, int length) {
            target.write(data, start, length);
        }
    }

    private static final class Exited extends Error {
        private Exited(String message) {
            super(message, null, false, false);
        }
    }

    /** First exit status of the running tool: some tools catch the exception of exit, and exit with another status. */
    private static Integer exitStatus;

    private static int run(String name, String[] arguments) throws ReflectiveOperationException {
        exitStatus = null;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException wrapped) {
            if (wrapped.getCause() instanceof Exited) {
                return exitStatus;
            }
            wrapped.getCause().printStackTrace();
            return 1;
        }
    }

    private static String decoded(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }

    private static String encoded(ByteArrayOutputStream bytes) {
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        Switch out = new Switch();
        Switch err = new Switch();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.Procedure procedure = (status, message) -> {
            if (exitStatus == null) {
                exitStatus = status;
                if (message != null) {
                    System.err.println(message);
                }
            }
            throw new Exited(message);
        };
        Exit.setExitProcedure(procedure);
        Exit.setHaltProcedure(procedure);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            String[] arguments = new String[words.length - 1];
            for (int index = 0; index < arguments.length; index++) {
                arguments[index] = decoded(words[index + 1]);
            }
            out.target = new ByteArrayOutputStream();
            err.target = new ByteArrayOutputStream();
            int status = run(decoded(words[0]), arguments);
            answers.println(status + " " + encoded(out.target) + " " + encoded(err.target));
            answers.flush();
        }
        System.exit(0);
    }
}
