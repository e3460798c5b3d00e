import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes a record and reads it, once for each line of stdin, all at the same time. It runs on all clients since 2.8.
 *
 * A line is a topic and the properties of a client in Base64. A line of stdout, in the same order, is the exceptions of
 * the attempt in Base64, the outer one first; empty if it succeeded.
 */
public final class SecuredClient {
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private static void writeAndRead(String topic, Properties properties) throws Exception {
        RecordMetadata written;
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            written = producer.send(new ProducerRecord<>(topic, 0, null, "tea")).get();
        }
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seek(partition, written.offset());
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    if (record.offset() == written.offset() && record.value().equals("tea")) {
                        return;
                    }
                }
            }
            throw new IllegalStateException("the record was not read");
        }
    }

    private static String attempt(String topic, String text) throws Exception {
        Properties properties = new Properties();
        properties.load(new StringReader(text));
        try {
            writeAndRead(topic, properties);
            return "";
        } catch (Exception failure) {
            StringBuilder all = new StringBuilder();
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                all.append(cause).append('\n');
            }
            return all.toString();
        }
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<String>> attempts = new ArrayList<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            String text = new String(Base64.getDecoder().decode(words[1]), StandardCharsets.UTF_8);
            attempts.add(threads.submit(() -> attempt(words[0], text)));
        }
        for (Future<String> attempt : attempts) {
            byte[] text = attempt.get().getBytes(StandardCharsets.UTF_8);
            System.out.println(Base64.getEncoder().encodeToString(text));
        }
        threads.shutdown();
    }
}
