-- All that may be emitted now: every one at the start, afterwards those of the members that changed.
SELECT topic, partition, "offset", key, value, kafka_timestamp, event_id, accepted_at
  FROM pending_board
 WHERE sent_at IS NULL
   AND (%(member_ids)s::bigint[] IS NULL OR member_id = ANY (%(member_ids)s::bigint[]))
 ORDER BY topic, partition, "offset"
