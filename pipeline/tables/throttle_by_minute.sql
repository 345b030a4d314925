-- What the records of `throttle_events` after {done} and up to {last} add to each minute. Those from {first} on are
-- read: the last record of each target before them, where that is a throttle that may have run until them, is among
-- these.
WITH records AS (
  SELECT
    "cluster", broker_id, "user", client_id, quota_type, quota_version, publish_seq, cause, decision_id,
    action = 'throttle' AS holds, throttled_until_ms, throttled_until_ms - throttle_time_ms AS stored_ms
  FROM source
  WHERE publish_seq >= {first} AND publish_seq <= {last}
), followed AS (
  SELECT
    *,
    lag(CASE WHEN holds THEN decision_id END) OVER of_target AS running_id,
    lead(publish_seq) OVER of_target AS next_seq,
    least(throttled_until_ms, lead(stored_ms) OVER of_target) AS end_ms
  FROM records
  -- A user that is held for several quota types is as many targets.
  WINDOW of_target AS (
    PARTITION BY "cluster", broker_id, "user", client_id, CASE WHEN client_id IS NULL THEN quota_type END
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
    CASE WHEN cause = 'violation' AND (running_id IS NULL OR running_id <> decision_id) THEN 1 ELSE 0 END AS is_begin
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
