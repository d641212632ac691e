DELETE FROM pending_board p
 USING unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS done (topic, partition, "offset")
 WHERE p.topic = done.topic AND p.partition = done.partition AND p."offset" = done."offset"
