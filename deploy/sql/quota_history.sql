-- Who edited which quota, when and why: two more views, to be made after views.sql, with the same two variables:
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
