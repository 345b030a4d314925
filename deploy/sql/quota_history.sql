-- Who edited which quota, when and why, and who pays for what was used: three more views, to be made after views.sql, with the same two variables:
--
--     spark-sql -f deploy/sql/quota_history.sql -d schema=kquota -d tables_root=/srv/kquota/tables
--
-- They read the log and the files of the table `quotas` itself, because SQL has no view of the history of a Delta table.
-- So they need the right to read its folder, and at least one quota. Unity Catalog refuses such paths: there, run
-- DESCRIBE HISTORY quotas. `kquota quotas history` needs none of this.

USE ${schema};

CREATE OR REPLACE VIEW quota_commits
COMMENT 'Every commit to quotas whose log is kept, 400 days by default: when, by whom, from which machine, why.'
AS
WITH log AS (
  SELECT CAST(regexp_extract(_metadata.file_name, '^([0-9]+)', 1) AS BIGINT) AS version,
    from_json(value, 'commitInfo STRUCT<timestamp: BIGINT, operation: STRING, userMetadata: STRING>').commitInfo AS info
  FROM text.`${tables_root}/quotas/_delta_log/*.json`
  WHERE _metadata.file_name RLIKE '^[0-9]{20}[.]json$'
)
SELECT version, info.timestamp AS committed_at_ms, timestamp_millis(info.timestamp) AS committed_at,
  info.operation,
  get_json_object(info.userMetadata, '$.actor') AS actor,
  get_json_object(info.userMetadata, '$.host') AS host,
  get_json_object(info.userMetadata, '$.reason') AS reason
FROM log
WHERE info IS NOT NULL;

CREATE OR REPLACE VIEW quota_edits
COMMENT 'What each commit changed: one row per quota entity, with the values before and after. A commit whose files are no longer there is left out. It is still in quota_commits.'
AS
WITH actions AS (
  SELECT CAST(regexp_extract(_metadata.file_name, '^([0-9]+)', 1) AS BIGINT) AS version,
    from_json(value, 'add STRUCT<path: STRING>, remove STRUCT<path: STRING>') AS action
  FROM text.`${tables_root}/quotas/_delta_log/*.json`
  WHERE _metadata.file_name RLIKE '^[0-9]{20}[.]json$'
), touched AS (
  SELECT version, action.add IS NOT NULL AS is_after, url_decode(coalesce(action.add.path, action.remove.path)) AS file
  FROM actions
  WHERE action.add IS NOT NULL OR action.remove IS NOT NULL
), stored AS (
  SELECT *, _metadata.file_name AS file FROM parquet.`${tables_root}/quotas/*.parquet`
), complete AS (
  SELECT t.version
  FROM touched AS t
  LEFT JOIN (SELECT DISTINCT file FROM stored) AS s ON s.file = t.file
  GROUP BY t.version
  HAVING count(*) = count(s.file)
), sides AS (
  SELECT t.version, s.user, s.client_id,
    max(CASE WHEN NOT t.is_after THEN struct(s.producer_byte_rate, s.consumer_byte_rate, s.request_percentage, s.mode, s.owner, s.note) END) AS before,
    max(CASE WHEN t.is_after THEN struct(s.producer_byte_rate, s.consumer_byte_rate, s.request_percentage, s.mode, s.owner, s.note) END) AS after
  FROM touched AS t
  JOIN complete AS c ON c.version = t.version
  JOIN stored AS s ON s.file = t.file
  -- Not rows that are there only to forgive a debt.
  WHERE s.forgiven_until_ms IS NULL OR s.mode <> 'enforce'
    OR coalesce(s.producer_byte_rate, s.consumer_byte_rate, s.request_percentage, s.owner, s.note) IS NOT NULL
  GROUP BY t.version, s.user, s.client_id
)
SELECT e.version, c.committed_at_ms, c.committed_at, c.actor, c.reason, e.user, e.client_id,
  CASE WHEN e.before IS NULL THEN 'added' WHEN e.after IS NULL THEN 'removed' ELSE 'changed' END AS change,
  e.before.producer_byte_rate AS producer_byte_rate_before, e.after.producer_byte_rate AS producer_byte_rate,
  e.before.consumer_byte_rate AS consumer_byte_rate_before, e.after.consumer_byte_rate AS consumer_byte_rate,
  e.before.request_percentage AS request_percentage_before, e.after.request_percentage AS request_percentage,
  e.before.mode AS mode_before, e.after.mode AS mode,
  e.before.owner AS owner_before, e.after.owner AS owner,
  e.before.note AS note_before, e.after.note AS note
FROM sides AS e
LEFT JOIN quota_commits AS c ON c.version = e.version
WHERE NOT (e.before <=> e.after);

CREATE OR REPLACE VIEW chargeback
COMMENT 'What each owner used, by day, ISO week and month: choose one period_kind. Bytes are exact. A minute is charged to who owned the client when it began: the owner of the most specific row of quotas that covered the client then and named one, whatever its bounds and mode were. Use from before a row first named an owner is charged to that owner. Minutes without an owner are charged to null.'
AS
WITH named AS (
  SELECT user, client_id, owner,
    CASE WHEN count_if(owner <> '') OVER of_entity = 1 THEN 0 ELSE committed_at_ms END AS from_ms,
    lead(committed_at_ms, 1, 9223372036854775807) OVER of_entity AS until_ms
  FROM quota_edits
  WINDOW of_entity AS (PARTITION BY user, client_id ORDER BY version)
), owned AS (
  SELECT u.cluster, u.user, u.client_id, u.minute_start_ms, min_by(n.owner, l.level) AS owner
  FROM (SELECT DISTINCT cluster, user, client_id, minute_start_ms FROM usage_by_minute) AS u
  JOIN client_levels AS l ON l.cluster = u.cluster AND l.user = u.user AND l.client_id = u.client_id
  JOIN named AS n ON n.user = l.entity_user AND n.client_id = l.entity_client_id AND n.owner <> ''
    AND n.from_ms <= u.minute_start_ms AND u.minute_start_ms < n.until_ms
  GROUP BY u.cluster, u.user, u.client_id, u.minute_start_ms
)
SELECT p.period_kind, p.period, min(u.day) AS first_day, max(u.day) AS last_day, u.cluster, o.owner,
  count(DISTINCT u.user, u.client_id) AS clients,
  sum(u.produced_bytes) AS produced_bytes, sum(u.fetched_bytes) AS fetched_bytes,
  sum(u.request_time_ns) AS request_time_ns, sum(u.exempt_time_ns) AS exempt_time_ns,
  sum(u.request_count) AS request_count
FROM client_usage_by_minute AS u
LEFT JOIN owned AS o
  ON o.cluster = u.cluster AND o.user = u.user AND o.client_id = u.client_id AND o.minute_start_ms = u.minute_start_ms
LATERAL VIEW inline(array(
  named_struct('period_kind', 'day', 'period', CAST(u.day AS STRING)),
  named_struct('period_kind', 'week', 'period', concat(extract(YEAROFWEEK FROM u.day), '-W', lpad(CAST(extract(WEEK FROM u.day) AS STRING), 2, '0'))),
  named_struct('period_kind', 'month', 'period', substring(CAST(u.day AS STRING), 1, 7))
)) p AS period_kind, period
GROUP BY p.period_kind, p.period, u.cluster, o.owner;
