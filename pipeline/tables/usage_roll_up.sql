-- The sums of `usage` by span of time and client, of the rows of one time epoch that a step takes.
SELECT
  sample_start_ms - sample_start_ms % {span_ms} AS {name}_start_ms,
  "cluster", broker_id, "user", client_id, {sums},
  max(last_event_ms) AS last_event_ms
FROM source
WHERE time_epoch = {time_epoch} AND {taken}
GROUP BY 1, "cluster", broker_id, "user", client_id
