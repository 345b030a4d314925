import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Scanner;

/** Reads lines: [key, value] is a record, [cluster, broker, user, client-id] a question, [] the end of one topic. */
class ThrottleReaderAnswers {
    public static void main(String[] args) throws Exception {
        var reader = new ThrottleReader();
        for (var lines = new Scanner(System.in, "UTF-8"); lines.hasNextLine();) {
            String[] names = new ObjectMapper().readValue(lines.nextLine(), String[].class);
            if (names.length == 2) reader.take(names[0], names[1]);
            if (names.length == 4) System.out.println(reader.heldUntilMs(names[0], names[1], names[2], names[3]));
            if (names.length == 0) {
                System.out.println(reader.unreadable);
                reader = new ThrottleReader();
            }
        }
    }
}
