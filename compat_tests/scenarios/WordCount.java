import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;

/**
 * Counts words with Kafka Streams, exactly once, in total and for each day, and writes every intermediate count.
 * Arguments: bootstrap servers, topic of lines, topic of counts, application id, state directory.
 * Stops at the end of stdin. In-memory stores are restored from their changelogs at the next start.
 */
public class WordCount {
    public static void main(String[] args) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, String> words = builder.<String, String>stream(args[1])
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word);
        words.count(Materialized.as("total"))
                .toStream((word, count) -> word)
                .mapValues((word, count) -> "total " + word + " " + count)
                .to(args[2]);
        words.windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofDays(1)))
                .count(Materialized.as("daily"))
                .toStream((window, count) -> window.key())
                .mapValues((word, count) -> "daily " + word + " " + count)
                .to(args[2]);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), configs(args))) {
            streams.start();
            while (System.in.read() != -1) {
                // input on stdin is ignored
            }
        }
    }

    private static Properties configs(String[] args) {
        Properties configs = new Properties();
        configs.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        configs.put(StreamsConfig.APPLICATION_ID_CONFIG, args[3]);
        configs.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        configs.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        configs.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        configs.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        configs.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        configs.put(
                StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG, BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class);
        configs.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // so that every count is written
        configs.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        configs.put(StreamsConfig.consumerPrefix("group.instance.id"), "counter"); // rejoins without waiting for the session timeout
        return configs;
    }
}
