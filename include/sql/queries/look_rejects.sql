SELECT r.topic, r.partition, r."offset", r.reason
  FROM reject r
  JOIN unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS sent (topic, partition, "offset")
 USING (topic, partition, "offset")
 ORDER BY r.partition, r."offset"
