import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Runs two consumers of the consumer protocol: the second joins later, and the first leaves before the end.
 * Arguments: bootstrap servers, group, an RE2 pattern, number of records to wait for.
 * Prints how the partitions were shared, then every number that was read.
 */
public class TwoConsumers {
    private static final Set<Integer> SEEN = new TreeSet<>();
    private static final long DEADLINE = System.nanoTime() + 60_000_000_000L;

    public static void main(String[] args) {
        int wanted = Integer.parseInt(args[3]);
        try (KafkaConsumer<String, String> second = consumer(args)) {
            try (KafkaConsumer<String, String> first = consumer(args)) {
                first.subscribe(new SubscriptionPattern(args[2]));
                while (SEEN.size() < wanted) {
                    poll(first);
                }
                second.subscribe(new SubscriptionPattern(args[2]));
                while (first.assignment().size() != 2 || second.assignment().size() != 2) {
                    poll(first);
                    poll(second);
                }
                System.out.println("shared " + first.assignment().size() + " " + second.assignment().size());
                first.commitSync();
            }
            while (second.assignment().size() != 4) {
                poll(second);
            }
            System.out.println("alone " + second.assignment().size());
            second.commitSync();
        }
        System.out.println("seen " + SEEN);
    }

    private static KafkaConsumer<String, String> consumer(String[] args) {
        Map<String, Object> config = Map.of(
            "bootstrap.servers", args[0],
            "group.id", args[1],
            "group.protocol", "consumer",
            "auto.offset.reset", "earliest",
            "enable.auto.commit", "false");
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    private static void poll(KafkaConsumer<String, String> consumer) {
        if (System.nanoTime() > DEADLINE) {
            throw new IllegalStateException("it takes too long; seen " + SEEN);
        }
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
            SEEN.add(Integer.parseInt(record.value()));
        }
    }
}
