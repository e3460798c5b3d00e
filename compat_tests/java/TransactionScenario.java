import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Runs transactional Java clients: `write`, `fence` or `copy`; prints the results. */
public final class TransactionScenario {
    private static KafkaProducer<String, String> producer(String bootstrap, String id) {
        Map<String, Object> configs = new HashMap<>();
        configs.put("bootstrap.servers", bootstrap);
        configs.put("transactional.id", id);
        configs.put("max.block.ms", 30000);
        return new KafkaProducer<>(configs, new StringSerializer(), new StringSerializer());
    }

    /** Each further argument is a transaction, as OUTCOME:RECORDS. */
    private static void write(String bootstrap, String topic, String id, List<String> transactions) throws Exception {
        try (KafkaProducer<String, String> producer = producer(bootstrap, id)) {
            producer.initTransactions();
            int number = 0;
            for (String word : transactions) {
                String[] parts = word.split(":");
                producer.beginTransaction();
                for (int count = Integer.parseInt(parts[1]); count > 0; count--) {
                    producer.send(new ProducerRecord<>(topic, number % 2, null, parts[0] + number++)).get();
                }
                if (parts[0].equals("commit")) {
                    producer.commitTransaction();
                } else if (parts[0].equals("abort")) {
                    producer.abortTransaction();
                }
            }
        }
    }

    /** Fences a producer by a second one with the same transactional id; the first can no longer write or commit. */
    private static void fence(String bootstrap, String topic, String id) throws Exception {
        try (KafkaProducer<String, String> first = producer(bootstrap, id);
                KafkaProducer<String, String> second = producer(bootstrap, id)) {
            first.initTransactions();
            first.beginTransaction();
            first.send(new ProducerRecord<>(topic, 0, null, "zombie")).get();
            second.initTransactions();
            try {
                first.commitTransaction();
                System.out.println("not fenced");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                System.out.println("fenced");
            }
            second.beginTransaction();
            second.send(new ProducerRecord<>(topic, 0, null, "second")).get();
            second.commitTransaction();
        }
    }

    /** Copies a topic with its offsets in transactions, of which every second one is aborted. */
    private static void copy(String bootstrap, String from, String to, String group, String protocol, int wanted) {
        Map<String, Object> configs = new HashMap<>();
        configs.put("bootstrap.servers", bootstrap);
        configs.put("group.id", group);
        configs.put("group.protocol", protocol);
        configs.put("isolation.level", "read_committed");
        configs.put("auto.offset.reset", "earliest");
        configs.put("enable.auto.commit", false);
        configs.put("max.poll.records", 5);
        try (KafkaConsumer<String, String> consumer =
                        new KafkaConsumer<>(configs, new StringDeserializer(), new StringDeserializer());
                KafkaProducer<String, String> producer = producer(bootstrap, group)) {
            producer.initTransactions();
            consumer.subscribe(List.of(from));
            int done = 0;
            boolean isAborted = true;
            long end = System.currentTimeMillis() + 60000;
            while (done < wanted && System.currentTimeMillis() < end) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                Map<TopicPartition, Long> starts = new HashMap<>();
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                    producer.send(new ProducerRecord<>(to, record.partition(), null, record.value()));
                    starts.putIfAbsent(partition, record.offset());
                    offsets.put(partition, new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (isAborted) {
                    producer.abortTransaction();
                    starts.forEach(consumer::seek);
                } else {
                    producer.commitTransaction();
                    done += records.count();
                }
                isAborted = !isAborted;
            }
            System.out.println(done);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[1];
        switch (arguments[0]) {
            case "write" -> write(bootstrap, arguments[2], arguments[3], List.of(arguments).subList(4, arguments.length));
            case "fence" -> fence(bootstrap, arguments[2], arguments[3]);
            case "copy" -> copy(bootstrap, arguments[2], arguments[3], arguments[4], arguments[5],
                Integer.parseInt(arguments[6]));
            default -> throw new KafkaException("no such scenario: " + arguments[0]);
        }
    }
}
