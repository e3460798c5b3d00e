import org.apache.kafka.common.security.auth.AuthenticationContext;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.KafkaPrincipalBuilder;
import org.apache.kafka.common.security.auth.KafkaPrincipalSerde;
import org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder;

/** Clients of the listener CLIENTS are User:ANONYMOUS. Brokers and operators, on other listeners, are User:admin. */
public class ListenerPrincipal implements KafkaPrincipalBuilder, KafkaPrincipalSerde {
    private final DefaultKafkaPrincipalBuilder serde = new DefaultKafkaPrincipalBuilder(null, null);

    @Override
    public KafkaPrincipal build(AuthenticationContext context) {
        return new KafkaPrincipal("User", context.listenerName().equals("CLIENTS") ? "ANONYMOUS" : "admin");
    }

    @Override
    public byte[] serialize(KafkaPrincipal principal) {
        return serde.serialize(principal);
    }

    @Override
    public KafkaPrincipal deserialize(byte[] bytes) {
        return serde.deserialize(bytes);
    }
}
