import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs org.apache.kafka.tools.ConfigCommand for each line of standard input (arguments separated by tabs), all in one JVM, and
 * answers with a line of exit code, standard output and standard error, the last two as base64.
 */
public class ConfigCommands {
    private static final class Ended extends Error {
    }

    private static String encoded(ByteArrayOutputStream said) {
        return Base64.getEncoder().encodeToString(said.toByteArray());
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            // The command catches what the exit procedure throws and exits once more: the first exit is the answer.
            String[] answer = {null};
            Exit.setExitProcedure((code, message) -> {
                if (answer[0] == null) {
                    answer[0] = code + "\t" + encoded(out) + "\t" + encoded(err);
                }
                throw new Ended();
            });
            try {
                org.apache.kafka.tools.ConfigCommand.main(line.split("\t", -1));
            } catch (Ended ended) {
                // answered above
            }
            answers.println(answer[0] == null ? "0\t" + encoded(out) + "\t" + encoded(err) : answer[0]);
            answers.flush();
        }
    }
}
