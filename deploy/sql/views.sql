-- Views over the tables of kquota, in Spark SQL: for Spark 4 with Delta, and for Databricks.
--
-- Two variables: ${schema}, where tables and views are registered (kquota, or main.kquota in Unity Catalog), and
-- ${tables_root}, the root of the tables (`tables.root` of the settings; a full path or URI). Either let Spark fill them in:
--
--     spark-sql -f deploy/sql/views.sql -d schema=kquota -d tables_root=/srv/kquota/tables
--
-- or print the text with both filled in, for a SQL editor, a warehouse or a job: kquota tables views --schema main.kquota
--
-- Every statement can be repeated. Nothing here writes a row. Instants are columns _ms (epoch) and, next to them,
-- TIMESTAMP. Days, weeks (ISO) and months are those of UTC, whatever the time zone of the session is.

CREATE SCHEMA IF NOT EXISTS ${schema};
USE ${schema};

-- The tables. One that is registered already stays as it is.
CREATE TABLE IF NOT EXISTS quotas USING DELTA LOCATION '${tables_root}/quotas';
CREATE TABLE IF NOT EXISTS tenants USING DELTA LOCATION '${tables_root}/tenants';
CREATE TABLE IF NOT EXISTS usage USING DELTA LOCATION '${tables_root}/usage';
CREATE TABLE IF NOT EXISTS batches USING DELTA LOCATION '${tables_root}/batches';
CREATE TABLE IF NOT EXISTS decisions USING DELTA LOCATION '${tables_root}/decisions';
CREATE TABLE IF NOT EXISTS throttle_events USING DELTA LOCATION '${tables_root}/throttle_events';
CREATE TABLE IF NOT EXISTS sensor_state USING DELTA LOCATION '${tables_root}/sensor_state';
CREATE TABLE IF NOT EXISTS rates USING DELTA LOCATION '${tables_root}/rates';
CREATE TABLE IF NOT EXISTS dead_letters USING DELTA LOCATION '${tables_root}/dead_letters';
CREATE TABLE IF NOT EXISTS broker_quotas USING DELTA LOCATION '${tables_root}/broker_quotas';
CREATE TABLE IF NOT EXISTS usage_by_second USING DELTA LOCATION '${tables_root}/usage_by_second';
CREATE TABLE IF NOT EXISTS usage_by_minute USING DELTA LOCATION '${tables_root}/usage_by_minute';
CREATE TABLE IF NOT EXISTS throttle_by_minute USING DELTA LOCATION '${tables_root}/throttle_by_minute';

-- Whose client it is, and which quota holds for it ------------------------------------------------------------------

CREATE OR REPLACE VIEW client_levels
COMMENT 'Every client that is known, with the entities of the eight levels at which a quota can hold for it, the most specific first. A user that was held as a whole is here too, with client_id null and the two levels of users. The other views join it with quotas.'
AS
SELECT c.cluster, c.user, c.client_id, e.level, e.entity_user, e.entity_client_id
FROM (
  SELECT cluster, user, client_id FROM usage_by_minute
  UNION
  SELECT cluster, user, client_id FROM throttle_events
) AS c
LATERAL VIEW inline(array(
  named_struct('level', 1, 'entity_user', c.user, 'entity_client_id', c.client_id),
  named_struct('level', 2, 'entity_user', c.user, 'entity_client_id', '<default>'),
  named_struct('level', 3, 'entity_user', c.user, 'entity_client_id', ''),
  named_struct('level', 4, 'entity_user', '<default>', 'entity_client_id', c.client_id),
  named_struct('level', 5, 'entity_user', '<default>', 'entity_client_id', '<default>'),
  named_struct('level', 6, 'entity_user', '<default>', 'entity_client_id', ''),
  named_struct('level', 7, 'entity_user', '', 'entity_client_id', c.client_id),
  named_struct('level', 8, 'entity_user', '', 'entity_client_id', '<default>')
)) e AS level, entity_user, entity_client_id
-- An empty client-id has no name that a quota could give, and all client-ids of a user have none.
WHERE CASE WHEN c.client_id IS NULL THEN e.level IN (3, 6) ELSE c.client_id <> '' OR e.level NOT IN (1, 4, 7) END;

CREATE OR REPLACE VIEW client_owners
COMMENT 'The owner of each client, and of each user that was held as a whole (client_id null): that of the most specific row of quotas that covers it and names one, whatever its bounds and mode are. Owners are those of today. The view chargeback has the owners of that time.'
AS
SELECT l.cluster, l.user, l.client_id, min_by(q.owner, CASE WHEN q.owner IS NOT NULL THEN l.level END) AS owner
FROM client_levels AS l
LEFT JOIN quotas AS q ON q.user = l.entity_user AND q.client_id = l.entity_client_id AND q.owner <> ''
GROUP BY l.cluster, l.user, l.client_id;

CREATE OR REPLACE VIEW client_bounds
COMMENT 'The quota that holds for each client, by quota type, with the level that matched and the sensor that the client shares with others. Rows in shadow mode are left out. Bound is null where the row is exempt. The switch kquota mode, which makes all quotas shadow, is a property of the table and cannot be seen here. Tenants are not counted: their members may have more or less, and those without a quota of their own are not in it.'
AS
WITH bounds AS (
  SELECT q.user, q.client_id, q.mode, t.quota_type, CASE WHEN q.mode = 'enforce' THEN t.bound END AS bound
  FROM quotas AS q
  LATERAL VIEW inline(array(
    named_struct('quota_type', 'producer_byte_rate', 'bound', q.producer_byte_rate),
    named_struct('quota_type', 'consumer_byte_rate', 'bound', q.consumer_byte_rate),
    named_struct('quota_type', 'request_percentage', 'bound', q.request_percentage)
  )) t AS quota_type, bound
  WHERE q.mode = 'exempt' OR (q.mode = 'enforce' AND t.bound IS NOT NULL)
), matched AS (
  SELECT l.cluster, l.user, l.client_id, b.quota_type,
    min(l.level) AS level,
    min_by(b.mode, l.level) AS mode,
    min_by(b.bound, l.level) AS bound
  FROM client_levels AS l
  JOIN bounds AS b ON b.user = l.entity_user AND b.client_id = l.entity_client_id
  -- As in Kafka: a default client-id never bounds an empty one.
  WHERE l.client_id IS NOT NULL AND (l.client_id <> '' OR l.level IN (3, 6))
  GROUP BY l.cluster, l.user, l.client_id, b.quota_type
)
SELECT cluster, user, client_id, quota_type, level, mode, bound,
  CASE WHEN level IN (7, 8) THEN '' ELSE user END AS sensor_user,
  CASE WHEN level IN (3, 6) THEN '' ELSE client_id END AS sensor_client_id
FROM matched;

CREATE OR REPLACE VIEW client_tenants
COMMENT 'The tenant of each client that is known, and of each user that was held as a whole (client_id null), by the names alone: the most specific pattern wins, that of a user before that of a client-id, a name before the beginning of one, the longer before the shorter. Clients of no tenant are left out, exempt ones are not. Patterns are those of today.'
AS
WITH names AS (
  SELECT c.cluster, c.user, c.client_id, n.part, n.name
  FROM (SELECT DISTINCT cluster, user, client_id FROM client_levels) AS c
  LATERAL VIEW inline(array(
    named_struct('part', 'user', 'name', c.user),
    named_struct('part', 'client_id', 'name', c.client_id)
  )) n AS part, name
  WHERE n.name <> ''
), texts AS (
  SELECT cluster, user, client_id, part, name AS pattern, 0 AS is_prefix FROM names WHERE NOT endswith(name, '*')
  UNION ALL
  SELECT cluster, user, client_id, part, concat(left(name, l.size), '*'), 1
  FROM names LATERAL VIEW explode(sequence(0, length(name))) l AS size
), patterns AS (
  SELECT tenant, 'user' AS part, p.pattern FROM tenants LATERAL VIEW explode(user_patterns) p AS pattern
  UNION ALL
  SELECT tenant, 'client_id', p.pattern FROM tenants LATERAL VIEW explode(client_id_patterns) p AS pattern
)
SELECT t.cluster, t.user, t.client_id,
  max_by(p.tenant, struct(t.part, 1 - t.is_prefix, length(t.pattern))) AS tenant
FROM texts AS t
JOIN patterns AS p ON p.part = t.part AND p.pattern = t.pattern
GROUP BY t.cluster, t.user, t.client_id;

-- Rates of now -------------------------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW nearest_now
COMMENT 'How near every sensor is to its bound, as the job saw it when it last replaced the table rates: as_of says when. A sensor of a user is all of its client-ids: client_id is null. Order by share to see the nearest first, above 1 it is over its bound. broker_held_share is the part of the last minute for which the brokers themselves held it. The clients of a sensor, and those without a bound, are in rates.'
AS
SELECT cluster, as_of_ms, as_of, broker_id, user, client_id, quota_type, observed, bound, share, window_ms, clients, level, mode, held_until_ms, broker_held_share
FROM rates
WHERE clients IS NOT NULL;

CREATE OR REPLACE VIEW tenants_now
COMMENT 'What the members of each tenant use together, against its bound, by quota type, as the job saw it when it last replaced the table rates: as_of says when. Borrowed is what members use above their own bounds, as far as they may, tenant_level how many times its own bound a member may use now: null while all that is wanted fits. Bounds are those of today. The members are the rows of rates with this tenant and its mode and clients not null. With kquota mode shadow, which makes all shadow, they are those in shadow mode.'
AS
WITH bounds AS (
  SELECT t.tenant, t.owner, t.mode, b.quota_type, b.bound
  FROM tenants AS t
  LATERAL VIEW inline(array(
    named_struct('quota_type', 'producer_byte_rate', 'bound', t.producer_byte_rate),
    named_struct('quota_type', 'consumer_byte_rate', 'bound', t.consumer_byte_rate),
    named_struct('quota_type', 'request_percentage', 'bound', t.request_percentage)
  )) b AS quota_type, bound
  WHERE b.bound IS NOT NULL
)
SELECT r.cluster, max(r.as_of_ms) AS as_of_ms, max(r.as_of) AS as_of, r.broker_id, r.tenant, b.owner, r.quota_type, r.mode,
  count(*) AS members, count(r.held_until_ms) AS members_held, sum(r.observed) AS observed, b.bound,
  sum(r.observed) / b.bound AS share, sum(greatest(least(r.observed, r.bound) - r.own_bound, 0)) AS borrowed,
  max(r.tenant_level) AS tenant_level
FROM rates AS r
JOIN bounds AS b ON b.tenant = r.tenant AND b.quota_type = r.quota_type
WHERE r.clients IS NOT NULL
  AND (r.mode = b.mode OR (SELECT count(*) FROM rates WHERE mode = 'enforce') = 0)
GROUP BY r.cluster, r.broker_id, r.tenant, b.owner, r.quota_type, r.mode, b.bound;

-- Throttles -----------------------------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW throttle_log
COMMENT 'Every record that was published, newest last by publish_seq: what it did (throttle, extend, renew, release), to whom, until when, and why in words. Client_id null is all client-ids of the user but except_client_ids. Rates are in kB per second, or percent of one thread.'
AS
WITH records AS (
  SELECT *,
    throttled_until_ms - throttle_time_ms AS written_at_ms,
    CASE WHEN quota_type = 'request_percentage' THEN concat(format_number(observed, 1), ' %')
      ELSE concat(format_number(observed / 1000, 1), ' kB/s') END AS observed_text,
    CASE WHEN bound IS NULL THEN 'none'
      WHEN quota_type = 'request_percentage' THEN concat(format_number(bound, 1), ' %')
      ELSE concat(format_number(bound / 1000, 1), ' kB/s') END AS bound_text,
    concat(format_number(window_ms / 1000, 1), ' s') AS window_text,
    concat(format_number(throttle_time_ms / 1000, 1), ' s') AS wait_text,
    concat(format_number(owed_ms / 1000, 1), ' s') AS owed_text
  FROM throttle_events
)
SELECT publish_seq, written_at_ms, timestamp_millis(written_at_ms) AS written_at,
  cluster, broker_id, user, client_id, except_client_ids, quota_type,
  CASE WHEN action = 'release' THEN 'release'
    WHEN cause IN ('violation', 'debt') THEN 'throttle'
    WHEN cause = 'extended' THEN 'extend'
    ELSE 'renew' END AS verb,
  cause,
  CASE
    WHEN cause = 'forgiven' THEN concat('an operator forgave the ', owed_text, ' that it owed')
    WHEN action = 'release' AND bound IS NULL THEN 'its quota was taken away'
    WHEN action = 'release' AND cause = 'quota_changed' THEN concat('its quota was edited: now ', bound_text)
    WHEN action = 'release' AND owed_ms > 0 THEN concat('its time is over, and ', owed_ms, ' ms that it owes are let go')
    WHEN action = 'release' THEN 'its time is over and it owes nothing more'
    WHEN cause IN ('violation', 'debt', 'extended') AND observed > bound THEN concat('used ', observed_text, ' over ', window_text, ', its quota is ', bound_text, ': wait ', wait_text)
    WHEN cause = 'quota_changed' THEN concat('its quota was edited to ', bound_text, ' and it owes ', owed_text, ': wait ', wait_text)
    ELSE concat('has not paid back what it used above ', bound_text, ', owes ', owed_text, ': wait ', wait_text)
  END AS reason,
  observed, bound, window_ms, owed_ms, throttle_time_ms,
  throttled_until_ms, throttled_until, decision_id, batch_id, quota_version, lateness_ms, date
FROM records;

CREATE OR REPLACE VIEW throttled_now
COMMENT 'Who must wait at this moment, by the wall clock of whoever asks, with the reason, the end and the owner: clients, and with client_id null all client-ids of a user but except_client_ids, once for each quota type. What has ended is not here, also if the job is down: throttles lapse on their own.'
AS
WITH now AS (
  SELECT unix_millis(current_timestamp()) AS now_ms
), newest AS (
  SELECT max_by(struct(l.*), l.publish_seq) AS record
  FROM throttle_log AS l
  -- A release may end before the throttle that it ends: from the first throttle that may run on, every record counts.
  WHERE l.publish_seq >= (SELECT min(e.publish_seq) FROM throttle_events AS e CROSS JOIN now WHERE e.throttled_until_ms > now.now_ms)
  GROUP BY l.cluster, l.broker_id, l.user, l.client_id, CASE WHEN l.client_id IS NULL THEN l.quota_type END
)
SELECT n.record.cluster, n.record.broker_id, n.record.user, n.record.client_id, n.record.except_client_ids, o.owner,
  n.record.quota_type, n.record.verb, n.record.reason, n.record.observed, n.record.bound,
  n.record.throttled_until_ms, n.record.throttled_until,
  n.record.throttled_until_ms - now.now_ms AS remaining_ms,
  n.record.decision_id, n.record.quota_version
FROM newest AS n
CROSS JOIN now
LEFT JOIN client_owners AS o
  ON o.cluster = n.record.cluster AND o.user = n.record.user AND o.client_id <=> n.record.client_id
WHERE n.record.verb <> 'release' AND n.record.throttled_until_ms > now.now_ms;

CREATE OR REPLACE VIEW held_clients_now
COMMENT 'The clients that must wait at this moment, of those that are known: until the last throttle ends that holds them, their own or one of their user that does not except them. For all who may be held, also client-ids that were never seen, see throttled_now.'
AS
SELECT c.cluster, t.broker_id, c.user, c.client_id, c.owner,
  max(t.throttled_until_ms) AS held_until_ms, timestamp_millis(max(t.throttled_until_ms)) AS held_until,
  max_by(t.reason, t.throttled_until_ms) AS reason, max_by(t.decision_id, t.throttled_until_ms) AS decision_id
FROM client_owners AS c
JOIN throttled_now AS t ON t.cluster = c.cluster AND t.user = c.user
  AND (t.client_id = c.client_id OR t.client_id IS NULL AND NOT array_contains(t.except_client_ids, c.client_id))
WHERE c.client_id IS NOT NULL
GROUP BY c.cluster, t.broker_id, c.user, c.client_id, c.owner;

CREATE OR REPLACE VIEW decisions_published
COMMENT 'Every decision, with what was published under its id: how many records, and from when until when they held. A decision without records asked for no hold, made a running throttle longer under the id of that one, or was not published: kquota throttles explain says why. Only rows with asks_hold ask for a hold: of a sensor that is held as a whole the row with client_id null, and not those of its clients.'
AS
WITH published AS (
  SELECT decision_id, count(*) AS records, min(publish_seq) AS first_publish_seq,
    min(throttled_until_ms - throttle_time_ms) AS held_from_ms, max_by(throttled_until_ms, publish_seq) AS held_until_ms
  FROM throttle_events
  GROUP BY decision_id
)
SELECT d.cluster, d.evaluated_at_ms, d.evaluated_at, d.batch_id, d.broker_id, d.user, d.client_id, d.quota_type,
  d.observed, d.bound, d.window_ms, d.throttle_time_ms, d.level, d.mode, d.asks_hold, d.more_clients, d.decision_id,
  d.quota_version, coalesce(p.records, 0) AS records, p.first_publish_seq, p.held_from_ms, p.held_until_ms, d.date
FROM decisions AS d
LEFT JOIN published AS p ON p.decision_id = d.decision_id;

CREATE OR REPLACE VIEW throttle_time_by_minute
COMMENT 'The mean and the longest throttle time of each sensor by minute, and how often it was above its bound: the throttle-time of the metrics of a broker, for the whole cluster. Decisions in shadow mode are marked by mode and held no client.'
AS
SELECT evaluated_at_ms - evaluated_at_ms % 60000 AS minute_start_ms,
  timestamp_millis(evaluated_at_ms - evaluated_at_ms % 60000) AS minute_start,
  cluster, broker_id, sensor_user, sensor_client_id, quota_type, mode,
  avg(throttle_time_ms) AS throttle_time_avg_ms, max(throttle_time_ms) AS throttle_time_max_ms, count(*) AS decisions
-- A batch has a row of every client of a sensor, with the same figures.
FROM (
  SELECT DISTINCT cluster, query_id, batch_id, evaluated_at_ms, broker_id, sensor_user, sensor_client_id, quota_type, mode, throttle_time_ms
  FROM decisions
)
WHERE throttle_time_ms > 0
GROUP BY evaluated_at_ms - evaluated_at_ms % 60000, cluster, broker_id, sensor_user, sensor_client_id, quota_type, mode;

CREATE OR REPLACE VIEW throttled_by_day
COMMENT 'How long each client was held, and how often it was throttled, by day and quota type. Client_id null is all client-ids of a user, held together. The owner is the one of that time. The time of a throttle is added when the record after it is stored, so a throttle that runs is not in it yet.'
AS
SELECT date AS day, cluster, broker_id, user, client_id, owner, quota_type,
  sum(held_ms) / 1000 AS held_seconds,
  sum(throttle_count) AS throttles,
  sum(renewal_count) AS renewals,
  count(DISTINCT CASE WHEN held_ms > 0 THEN minute_start_ms END) AS minutes_held
FROM throttle_by_minute
GROUP BY date, cluster, broker_id, user, client_id, owner, quota_type;

-- Usage ---------------------------------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW client_usage_by_minute
COMMENT 'What each client used per minute, summed over brokers, exact to the byte. Request time is that of io and network threads, without exempt requests. The owner is the one of today.'
AS
SELECT u.minute_start_ms, u.minute_start, u.date AS day, u.cluster, u.user, u.client_id, o.owner,
  u.produced_bytes, u.fetched_bytes, u.request_time_ns, u.exempt_time_ns, u.request_count
FROM (
  SELECT minute_start_ms, minute_start, date, cluster, user, client_id,
    coalesce(sum(produced_bytes), 0) AS produced_bytes,
    coalesce(sum(fetched_bytes), 0) AS fetched_bytes,
    coalesce(sum(io_time_ns), 0) + coalesce(sum(network_time_ns), 0) AS request_time_ns,
    coalesce(sum(exempt_time_ns), 0) AS exempt_time_ns,
    sum(request_count) AS request_count
  FROM usage_by_minute
  GROUP BY minute_start_ms, minute_start, date, cluster, user, client_id
) AS u
LEFT JOIN client_owners AS o ON o.cluster = u.cluster AND o.user = u.user AND o.client_id = u.client_id;

CREATE OR REPLACE VIEW client_usage_by_hour
COMMENT 'client_usage_by_minute, summed by hour.'
AS
SELECT minute_start_ms - minute_start_ms % 3600000 AS hour_start_ms,
  timestamp_millis(minute_start_ms - minute_start_ms % 3600000) AS hour_start,
  day, cluster, user, client_id, owner,
  sum(produced_bytes) AS produced_bytes, sum(fetched_bytes) AS fetched_bytes,
  sum(request_time_ns) AS request_time_ns, sum(exempt_time_ns) AS exempt_time_ns, sum(request_count) AS request_count
FROM client_usage_by_minute
GROUP BY minute_start_ms - minute_start_ms % 3600000, day, cluster, user, client_id, owner;

CREATE OR REPLACE VIEW client_usage_by_day
COMMENT 'client_usage_by_minute, summed by day of UTC.'
AS
SELECT day, cluster, user, client_id, owner,
  sum(produced_bytes) AS produced_bytes, sum(fetched_bytes) AS fetched_bytes,
  sum(request_time_ns) AS request_time_ns, sum(exempt_time_ns) AS exempt_time_ns, sum(request_count) AS request_count
FROM client_usage_by_minute
GROUP BY day, cluster, user, client_id, owner;

CREATE OR REPLACE VIEW chargeback_by_tenant
COMMENT 'What each tenant used, by day, ISO week and month: choose one period_kind. Bytes are exact. Use is charged by the names of the client and the patterns of today: see client_tenants. Use of no tenant is charged to null. The view chargeback has what each owner used.'
AS
SELECT p.period_kind, p.period, min(u.day) AS first_day, max(u.day) AS last_day, u.cluster, t.tenant,
  count(DISTINCT u.user, u.client_id) AS clients,
  sum(u.produced_bytes) AS produced_bytes, sum(u.fetched_bytes) AS fetched_bytes,
  sum(u.request_time_ns) AS request_time_ns, sum(u.exempt_time_ns) AS exempt_time_ns,
  sum(u.request_count) AS request_count
FROM client_usage_by_minute AS u
LEFT JOIN client_tenants AS t ON t.cluster = u.cluster AND t.user = u.user AND t.client_id = u.client_id
LATERAL VIEW inline(array(
  named_struct('period_kind', 'day', 'period', CAST(u.day AS STRING)),
  named_struct('period_kind', 'week', 'period', concat(extract(YEAROFWEEK FROM u.day), '-W', lpad(CAST(extract(WEEK FROM u.day) AS STRING), 2, '0'))),
  named_struct('period_kind', 'month', 'period', substring(CAST(u.day AS STRING), 1, 7))
)) p AS period_kind, period
GROUP BY p.period_kind, p.period, u.cluster, t.tenant;

CREATE OR REPLACE VIEW throttled_share
COMMENT 'For how much of each day, ISO week and month each client was held: choose one period_kind. Client_id null is all client-ids of a user, held together. Of a minute in which it was held for several quota types the longest counts. Observed_minutes are the minutes of the period for which the tables have usage or throttles of the cluster, and share is the part of them in which the client was held at all. Compare a share with how long was observed. The owner is the newest one of the period.'
AS
WITH minutes AS (
  SELECT cluster, minute_start_ms, date FROM usage_by_minute
  UNION
  SELECT cluster, minute_start_ms, date FROM throttle_by_minute
), periods AS (
  SELECT m.cluster, m.minute_start_ms, p.period_kind, p.period
  FROM minutes AS m
  LATERAL VIEW inline(array(
    named_struct('period_kind', 'day', 'period', CAST(m.date AS STRING)),
    named_struct('period_kind', 'week', 'period', concat(extract(YEAROFWEEK FROM m.date), '-W', lpad(CAST(extract(WEEK FROM m.date) AS STRING), 2, '0'))),
    named_struct('period_kind', 'month', 'period', substring(CAST(m.date AS STRING), 1, 7))
  )) p AS period_kind, period
), observed AS (
  SELECT cluster, period_kind, period, count(*) AS observed_minutes FROM periods GROUP BY cluster, period_kind, period
), held AS (
  SELECT t.cluster, t.user, t.client_id, p.period_kind, p.period,
    max_by(t.owner, t.minute_start_ms) AS owner,
    count(DISTINCT CASE WHEN t.held_ms > 0 THEN t.minute_start_ms END) AS minutes_held,
    sum(t.held_ms) / 1000 AS held_seconds,
    sum(t.throttle_count) AS throttles
  FROM (
    SELECT cluster, user, client_id, minute_start_ms, max_by(owner, held_ms) AS owner,
      CASE WHEN client_id IS NULL THEN max(held_ms) ELSE sum(held_ms) END AS held_ms, sum(throttle_count) AS throttle_count
    FROM (
      SELECT cluster, user, client_id, quota_type, minute_start_ms, max(owner) AS owner, sum(held_ms) AS held_ms, sum(throttle_count) AS throttle_count
      FROM throttle_by_minute
      GROUP BY cluster, user, client_id, quota_type, minute_start_ms
    )
    GROUP BY cluster, user, client_id, minute_start_ms
  ) AS t
  JOIN periods AS p ON p.cluster = t.cluster AND p.minute_start_ms = t.minute_start_ms
  GROUP BY t.cluster, t.user, t.client_id, p.period_kind, p.period
)
SELECT h.period_kind, h.period, h.cluster, h.user, h.client_id, h.owner, h.minutes_held, o.observed_minutes,
  h.minutes_held / o.observed_minutes AS share, h.held_seconds, h.throttles
FROM held AS h
JOIN observed AS o ON o.cluster = h.cluster AND o.period_kind = h.period_kind AND o.period = h.period;

CREATE OR REPLACE VIEW use_against_bound
COMMENT 'What each sensor used per second, as the mean of a minute, against the bound that holds for it today. A mean of a minute is smoother than the rate that decides, which is measured over 10 to 12 s: a client can be throttled in a minute whose ratio is below 1. Bounds of the past are in throttle_log and decisions. Sums are over all brokers: with scope broker, where each broker has the bound for itself, the ratio is too high. Tenants are not counted: of what they lend, the ratio is above 1.'
AS
WITH used AS (
  SELECT u.cluster, u.minute_start_ms, u.minute_start, u.day, u.user, u.client_id, t.quota_type, t.used
  FROM client_usage_by_minute AS u
  LATERAL VIEW inline(array(
    named_struct('quota_type', 'producer_byte_rate', 'used', CAST(u.produced_bytes AS DOUBLE)),
    named_struct('quota_type', 'consumer_byte_rate', 'used', CAST(u.fetched_bytes AS DOUBLE)),
    named_struct('quota_type', 'request_percentage', 'used', u.request_time_ns * 1e-7)
  )) t AS quota_type, used
)
SELECT u.minute_start_ms, u.minute_start, u.day, u.cluster, b.sensor_user, b.sensor_client_id, b.quota_type,
  b.level, b.bound,
  count(*) AS clients,
  sum(u.used) / 60 AS used_per_second,
  sum(u.used) / 60 / b.bound AS used_ratio
FROM used AS u
JOIN client_bounds AS b
  ON b.cluster = u.cluster AND b.user = u.user AND b.client_id = u.client_id AND b.quota_type = u.quota_type
WHERE b.bound IS NOT NULL
GROUP BY u.minute_start_ms, u.minute_start, u.day, u.cluster, b.sensor_user, b.sensor_client_id, b.quota_type, b.level, b.bound;

-- Whether the pipeline works --------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW dead_letters_by_cause
COMMENT 'What was refused, by day, topic and cause, with the newest example. Where one message holds very many bad elements only the first ones have a row. Batch_facts counts all.'
AS
SELECT date AS day, cluster, topic, cause,
  count(*) AS letters,
  max(appended_at_ms) AS newest_at_ms,
  timestamp_millis(max(appended_at_ms)) AS newest_at,
  max_by(concat(topic, ':', partition, ':', offset), appended_at_ms) AS newest_place,
  max_by(substring(make_valid_utf8(CAST(value AS STRING)), 1, 200), appended_at_ms) AS newest_value
FROM dead_letters
GROUP BY date, cluster, topic, cause;

CREATE OR REPLACE VIEW batch_facts
COMMENT 'Every micro-batch, in the order of time_epoch and evaluated_at_ms: its events and messages, the age of its newest event when it was collected, the time until its first and last record was stored, and the time since the batch before. The tables have no more times of steps: Prometheus has collect, append, decide and publish as kquota_batch_duration_seconds.'
AS
WITH read AS (
  SELECT *,
    aggregate(flatten(transform(map_values(from_json(nullif(end_offsets, ''), 'map<string,map<string,bigint>>')), o -> map_values(o))), CAST(0 AS BIGINT), (a, b) -> a + b) AS end_offset_sum,
    aggregate(flatten(transform(map_values(from_json(nullif(start_offsets, ''), 'map<string,map<string,bigint>>')), o -> map_values(o))), CAST(0 AS BIGINT), (a, b) -> a + b) AS start_offset_sum
  FROM batches
), stored AS (
  SELECT cluster, query_id, batch_id, count(*) AS records,
    min(throttled_until_ms - throttle_time_ms) AS first_ms, max(throttled_until_ms - throttle_time_ms) AS last_ms
  FROM throttle_events
  WHERE due_ms IS NULL AND cause IN ('violation', 'debt', 'extended')
  GROUP BY cluster, query_id, batch_id
)
SELECT b.cluster, b.query_id, b.batch_id, b.time_epoch, b.evaluated_at_ms, b.evaluated_at,
  b.processed_at_ms, timestamp_millis(b.processed_at_ms) AS processed_at,
  b.quota_version, b.end_offset_sum - b.start_offset_sum AS messages,
  b.good_count, b.late_count, b.clamped_count, b.ignored_count, b.dead_count,
  b.processed_at_ms - b.evaluated_at_ms AS age_ms,
  b.processed_at_ms - lag(b.processed_at_ms) OVER (PARTITION BY b.cluster, b.time_epoch ORDER BY b.processed_at_ms, b.batch_id) AS since_last_ms,
  coalesce(s.records, 0) AS records,
  s.first_ms - b.processed_at_ms AS collected_to_first_record_ms,
  s.last_ms - b.processed_at_ms AS collected_to_last_record_ms,
  b.date
FROM read AS b
LEFT JOIN stored AS s ON s.cluster = b.cluster AND s.query_id = b.query_id AND s.batch_id = b.batch_id;

CREATE OR REPLACE VIEW quota_versions
COMMENT 'Which version of the quotas decided, from when to when, in how many batches. Who edited what and why: kquota quotas history, or the views of quota_history.sql.'
AS
SELECT cluster, quota_version,
  min(struct(time_epoch, evaluated_at_ms)).evaluated_at_ms AS first_evaluated_at_ms,
  min_by(evaluated_at, struct(time_epoch, evaluated_at_ms)) AS first_evaluated_at,
  max(struct(time_epoch, evaluated_at_ms)).evaluated_at_ms AS last_evaluated_at_ms,
  max_by(evaluated_at, struct(time_epoch, evaluated_at_ms)) AS last_evaluated_at,
  count(*) AS batches, sum(good_count) AS good_count
FROM batches
GROUP BY cluster, quota_version;

CREATE OR REPLACE VIEW freshness
COMMENT 'The newest instant in each table that the job writes, and how long ago that is. After a clock was set back, that is the newest one since. decisions, throttle_events and dead_letters stand still while no client is over quota or sends garbage. Roll-ups follow one to two minutes behind usage. Batches stand still without usage.'
AS
SELECT table_name, measured_by, newest_ms, timestamp_millis(newest_ms) AS newest_at,
  (unix_millis(current_timestamp()) - newest_ms) / 1000 AS age_seconds
FROM (
  SELECT 'batches' AS table_name, 'processed_at_ms' AS measured_by, max(struct(time_epoch, processed_at_ms)).processed_at_ms AS newest_ms FROM batches
  UNION ALL
  SELECT 'usage', 'evaluated_at_ms', max(struct(time_epoch, evaluated_at_ms)).evaluated_at_ms FROM usage
  UNION ALL
  SELECT 'decisions', 'evaluated_at_ms', max(struct(time_epoch, evaluated_at_ms)).evaluated_at_ms FROM decisions
  UNION ALL
  SELECT 'throttle_events', 'written_at_ms', max_by(throttled_until_ms - throttle_time_ms, publish_seq) FROM throttle_events
  UNION ALL
  SELECT 'sensor_state', 'evaluated_at_ms', max(struct(time_epoch, evaluated_at_ms)).evaluated_at_ms FROM sensor_state
  UNION ALL
  SELECT 'rates', 'as_of_ms', max(as_of_ms) FROM rates
  UNION ALL
  SELECT 'dead_letters', 'appended_at_ms', max(appended_at_ms) FROM dead_letters WHERE appended_at_ms <= unix_millis(current_timestamp())
  UNION ALL
  SELECT 'usage_by_second', 'second_start_ms', max(second_start_ms) FROM usage_by_second WHERE second_start_ms <= unix_millis(current_timestamp())
  UNION ALL
  SELECT 'usage_by_minute', 'minute_start_ms', max(minute_start_ms) FROM usage_by_minute WHERE minute_start_ms <= unix_millis(current_timestamp())
  UNION ALL
  SELECT 'throttle_by_minute', 'minute_start_ms', max(minute_start_ms) FROM throttle_by_minute WHERE minute_start_ms <= unix_millis(current_timestamp())
);
