import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Copies one topic to another until it is killed. Each transaction has some copies and the offsets that were read for them.
 * After an error the next producer with the same transactional id ends the transaction, and the committed offsets say where
 * to go on. Arguments: bootstrap servers, topic, topic of the copies, number of partitions, group and transactional id.
 */
public class Copier {
    public static void main(String[] args) {
        Set<TopicPartition> source = IntStream.range(0, Integer.parseInt(args[3]))
                .mapToObj(index -> new TopicPartition(args[1], index))
                .collect(Collectors.toSet());
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(configs(args));
        consumer.assign(source);
        KafkaProducer<byte[], byte[]> producer = null;
        while (true) {
            try {
                if (producer == null) {
                    producer = new KafkaProducer<>(configs(args));
                    producer.initTransactions();
                    Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(source);
                    for (TopicPartition partition : source) {
                        OffsetAndMetadata found = committed.get(partition);
                        consumer.seek(partition, found == null ? 0 : found.offset());
                    }
                }
                copy(consumer, producer, args[2]);
            } catch (KafkaException error) {
                System.out.println(error);
                if (producer != null) {
                    producer.close(Duration.ZERO);
                    producer = null;
                }
            }
        }
    }

    private static void copy(KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer, String target) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        consumer.poll(Duration.ofMillis(100)).forEach(records::add);
        if (records.isEmpty()) {
            return;
        }
        producer.beginTransaction();
        for (ConsumerRecord<byte[], byte[]> read : records) {
            producer.send(new ProducerRecord<>(target, read.partition(), read.key(), read.value()));
            offsets.put(new TopicPartition(read.topic(), read.partition()), new OffsetAndMetadata(read.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
    }

    private static Properties configs(String[] args) {
        Properties configs = new Properties();
        configs.put("bootstrap.servers", args[0]);
        configs.put("group.id", args[4]);
        configs.put("transactional.id", args[4]);
        configs.put("isolation.level", "read_committed");
        configs.put("enable.auto.commit", "false");
        configs.put("metadata.max.age.ms", "1000");
        configs.put("key.deserializer", ByteArrayDeserializer.class.getName());
        configs.put("value.deserializer", ByteArrayDeserializer.class.getName());
        configs.put("key.serializer", ByteArraySerializer.class.getName());
        configs.put("value.serializer", ByteArraySerializer.class.getName());
        return configs;
    }
}
