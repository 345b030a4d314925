-- What the records of `throttle_events` after {done} and up to {last} add to each minute. The last record of each
-- target before them is read, too, where it is a throttle that ended at {since_ms} or later: it may have run until them.
WITH every AS (
  SELECT
    "cluster", broker_id, "user", client_id, quota_type, quota_version, publish_seq, cause, decision_id,
    action = 'throttle' AS holds, throttled_until_ms, throttled_until_ms - throttle_time_ms AS stored_ms,
    -- A user that is held for several quota types is as many targets.
    CASE WHEN client_id IS NULL THEN quota_type END AS type_of_user
  FROM source
), before AS (
  SELECT max(publish_seq) AS last_seq
  FROM every
  WHERE publish_seq <= {done} AND throttled_until_ms >= {since_ms}
  GROUP BY "cluster", broker_id, "user", client_id, type_of_user
), records AS (
  SELECT * FROM every WHERE publish_seq > {done} AND publish_seq <= {last}
  UNION ALL
  SELECT every.* FROM every JOIN before ON publish_seq = last_seq
  WHERE publish_seq <= {done} AND throttled_until_ms >= {since_ms} AND holds
), followed AS (
  SELECT
    *,
    lag(CASE WHEN holds THEN decision_id END) OVER of_target AS running_id,
    lead(publish_seq) OVER of_target AS next_seq,
    least(throttled_until_ms, lead(stored_ms) OVER of_target) AS end_ms
  FROM records
  WINDOW of_target AS (
    PARTITION BY "cluster", broker_id, "user", client_id, type_of_user
    ORDER BY publish_seq
  )
), held AS (
  -- Not if the clock was set back: then the end is before the begin.
  SELECT *, unnest(range(stored_ms / 60000, (end_ms - 1) / 60000 + 1)) * 60000 AS minute_start_ms
  FROM followed
  WHERE holds AND next_seq > {done} AND end_ms > stored_ms
), counted AS (
  SELECT
    *, stored_ms - stored_ms % 60000 AS minute_start_ms,
    CASE WHEN cause IN ('violation', 'debt') AND (running_id IS NULL OR running_id <> decision_id) THEN 1 ELSE 0 END AS is_begin
  FROM followed
  WHERE holds AND publish_seq > {done}
), added AS (
  SELECT
    minute_start_ms, "cluster", broker_id, "user", client_id, quota_type, quota_version,
    least(end_ms, minute_start_ms + 60000) - greatest(stored_ms, minute_start_ms) AS held_ms,
    0 AS throttle_count, 0 AS renewal_count
  FROM held
  UNION ALL
  SELECT
    minute_start_ms, "cluster", broker_id, "user", client_id, quota_type, quota_version,
    0, is_begin, 1 - is_begin
  FROM counted
)
SELECT
  minute_start_ms, "cluster", broker_id, "user", client_id, quota_type, quota_version,
  sum(held_ms) AS held_ms, sum(throttle_count) AS throttle_count, sum(renewal_count) AS renewal_count
FROM added
GROUP BY minute_start_ms, "cluster", broker_id, "user", client_id, quota_type, quota_version
