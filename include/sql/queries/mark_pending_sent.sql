-- The rows are locked in the order in which serve locks those it deletes: neither waits for the other in a circle.
WITH sent AS (
    SELECT p.topic, p.partition, p."offset"
      FROM pending_board p
      JOIN unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS given (topic, partition, "offset")
     USING (topic, partition, "offset")
     ORDER BY p.topic, p.partition, p."offset"
       FOR UPDATE OF p
)
UPDATE pending_board p
   SET sent_at = now()
  FROM sent
 WHERE p.topic = sent.topic AND p.partition = sent.partition AND p."offset" = sent."offset"
