import java.util.Map;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.server.quota.ClientQuotaCallback;
import org.apache.kafka.server.quota.ClientQuotaEntity;
import org.apache.kafka.server.quota.ClientQuotaType;

/** Decides that no client has a quota, whatever the quotas of the cluster are: as Strimzi's plugin treats those. */
public final class NoQuotas implements ClientQuotaCallback {
    @Override
    public Map<String, String> quotaMetricTags(ClientQuotaType type, KafkaPrincipal principal, String clientId) {
        return Map.of();
    }

    @Override
    public Double quotaLimit(ClientQuotaType type, Map<String, String> metricTags) {
        return null;
    }

    @Override
    public void updateQuota(ClientQuotaType type, ClientQuotaEntity entity, double value) {}

    @Override
    public void removeQuota(ClientQuotaType type, ClientQuotaEntity entity) {}

    @Override
    public boolean quotaResetRequired(ClientQuotaType type) {
        return false;
    }

    @Override
    public boolean updateClusterMetadata(Cluster cluster) {
        return false;
    }

    @Override
    public void close() {}

    @Override
    public void configure(Map<String, ?> settings) {}
}
