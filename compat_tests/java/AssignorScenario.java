import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.IntegerSerializer;

/**
 * Runs groups of Java consumers at the same time, one for each assignor: members join, leave, crash, pause and stall
 * while numbers are produced, and every number must be read. Prints the state at the end of each step.
 *
 * Arguments: bootstrap servers, prefix of the topic names, classes of the assignors.
 */
public final class AssignorScenario {
    private static final int PARTITIONS = 6;
    private static final long STEP_MS = 40_000;

    private final String bootstrap;
    private final String topic;
    private final String assignor;
    private final Set<Integer> seen = ConcurrentHashMap.newKeySet();
    private final AtomicInteger written = new AtomicInteger();
    private final List<Member> members = new ArrayList<>();

    private AssignorScenario(String bootstrap, String topic, String assignor) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.assignor = assignor;
    }

    /** Consumer that polls in its own thread and commits. */
    private final class Member implements ConsumerRebalanceListener {
        private final KafkaConsumer<Integer, Integer> consumer;
        private final Thread thread;
        private final AtomicBoolean ends = new AtomicBoolean();
        private final AtomicBoolean crashes = new AtomicBoolean();
        private final AtomicBoolean isPaused = new AtomicBoolean();
        private final AtomicBoolean isStalled = new AtomicBoolean();
        private final AtomicInteger taken = new AtomicInteger();
        private volatile Set<Integer> owned = Set.of();
        private volatile boolean isQuiet;
        private volatile int revoked;
        private volatile Exception failure;

        private Member(String name) {
            Properties config = new Properties();
            config.put("bootstrap.servers", bootstrap);
            config.put("group.id", topic);
            config.put("client.id", name);
            config.put("auto.offset.reset", "earliest");
            config.put("enable.auto.commit", "false");
            config.put("session.timeout.ms", "6000");
            config.put("heartbeat.interval.ms", "200");
            config.put("max.poll.interval.ms", "3000");
            config.put("partition.assignment.strategy", assignor);
            config.put("enable.metrics.push", "false");
            consumer = new KafkaConsumer<>(config, new IntegerDeserializer(), new IntegerDeserializer());
            thread = new Thread(this::run, name);
            thread.start();
        }

        private void run() {
            try {
                consumer.subscribe(List.of(topic), this);
                while (!ends.get() && !crashes.get()) {
                    step();
                }
            } catch (Exception problem) {
                failure = problem;
            } finally {
                owned = Set.of();
                // A crashed member sends no LeaveGroup: its session must expire.
                consumer.close(CloseOptions.groupMembershipOperation(
                        crashes.get() ? GroupMembershipOperation.REMAIN_IN_GROUP : GroupMembershipOperation.DEFAULT));
            }
        }

        private void step() throws InterruptedException {
            while (isStalled.get() && !ends.get()) {
                Thread.sleep(10);
            }
            boolean pauses = isPaused.get();
            if (pauses) {
                consumer.pause(consumer.assignment());
            } else {
                consumer.resume(consumer.paused());
            }
            var records = consumer.poll(Duration.ofMillis(50));
            for (ConsumerRecord<Integer, Integer> each : records) {
                seen.add(each.value());
            }
            taken.addAndGet(records.count());
            if (!records.isEmpty()) {
                commit();
            }
            owned = numbers(consumer.assignment());
            isQuiet = pauses;
        }

        private void commit() {
            try {
                consumer.commitSync();
            } catch (CommitFailedException | RebalanceInProgressException moved) {
                // The member was removed and its last records are not committed: another member reads them again.
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked += partitions.size();
        }

        private void end() throws InterruptedException {
            ends.set(true);
            thread.join();
            members.remove(this);
        }

        private void crash() throws InterruptedException {
            crashes.set(true);
            thread.join();
            members.remove(this);
        }
    }

    private static Set<Integer> numbers(Collection<TopicPartition> partitions) {
        Set<Integer> numbers = new TreeSet<>();
        partitions.forEach(each -> numbers.add(each.partition()));
        return numbers;
    }

    private Member join(String name) {
        Member member = new Member(name);
        members.add(member);
        return member;
    }

    private void write(KafkaProducer<Integer, Integer> producer, int count) {
        for (int number = 0; number < count; number++) {
            int value = written.getAndIncrement();
            producer.send(new ProducerRecord<>(topic, value % PARTITIONS, value, value));
        }
        producer.flush();
    }

    /** Whether each partition has one owner and no member has more than its share. */
    private boolean isSplit() {
        List<Integer> all = new ArrayList<>();
        for (Member each : members) {
            all.addAll(each.owned);
            if (each.owned.size() != PARTITIONS / members.size()) {
                return false;
            }
        }
        return all.size() == PARTITIONS && new HashSet<>(all).size() == PARTITIONS;
    }

    private boolean isAllSeen() {
        return seen.size() == written.get();
    }

    private void await(String what, BooleanSupplier isSo) throws InterruptedException {
        long deadline = System.currentTimeMillis() + STEP_MS;
        while (!isSo.getAsBoolean()) {
            for (Member each : members) {
                if (each.failure != null) {
                    throw new IllegalStateException(what + ": " + each.thread.getName() + " failed", each.failure);
                }
            }
            if (System.currentTimeMillis() > deadline) {
                StringBuilder state = new StringBuilder("still not: " + what + ", seen " + seen.size() + " of " + written);
                members.forEach(each -> state.append(", ").append(each.thread.getName()).append(' ').append(each.owned));
                throw new IllegalStateException(state.toString());
            }
            Thread.sleep(10);
        }
        say(what);
    }

    private void say(String what) {
        System.out.println(assignor.substring(assignor.lastIndexOf('.') + 1) + ": " + what);
    }

    private void settle(String what) throws InterruptedException {
        await(what, () -> isSplit() && isAllSeen());
    }

    private void run() throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "enable.metrics.push", "false");
        try (Admin admin = Admin.create(config);
                KafkaProducer<Integer, Integer> producer =
                        new KafkaProducer<>(config, new IntegerSerializer(), new IntegerSerializer())) {
            admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
            write(producer, 60);
            Member first = join("first");
            settle("one has all");
            int revokedBefore = first.revoked;
            Member second = join("second");
            write(producer, 60);
            settle("two share");
            say("revoked " + (first.revoked - revokedBefore));
            Member third = join("third");
            write(producer, 60);
            settle("three share");
            second.isPaused.set(true);
            await("a pause", () -> second.isQuiet);
            int taken = second.taken.get();
            int held = second.owned.size() * 60 / PARTITIONS;
            write(producer, 60);
            await("others go on", () -> seen.size() >= written.get() - held);
            say("paused took " + (second.taken.get() - taken));
            second.isPaused.set(false);
            settle("the pause ends");
            second.isStalled.set(true);
            members.remove(second);
            write(producer, 60);
            settle("one does not poll for too long");
            members.add(second);
            second.isStalled.set(false);
            write(producer, 60);
            settle("it polls again");
            third.end();
            write(producer, 60);
            settle("one went");
            second.crash();
            write(producer, 60);
            settle("one crashed");
            Member fourth = join("fourth");
            write(producer, 60);
            settle("a new one came");
            fourth.end();
            first.end();
        } finally {
            for (Member each : List.copyOf(members)) {
                each.end();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        for (int index = 2; index < arguments.length; index++) {
            AssignorScenario scenario = new AssignorScenario(arguments[0], arguments[1] + "-" + index, arguments[index]);
            Thread thread = new Thread(() -> {
                try {
                    scenario.run();
                } catch (Exception failure) {
                    failures.add(failure);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread each : threads) {
            each.join();
        }
        if (!failures.isEmpty()) {
            failures.forEach(Throwable::printStackTrace);
            throw new IllegalStateException(failures.size() + " of the scenarios failed");
        }
    }
}
