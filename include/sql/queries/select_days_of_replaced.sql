-- Days with a generation that was built from another topic of that name, and still has it in its cut.
SELECT DISTINCT day
  FROM generation
 WHERE cut ? %(topic)s AND cut -> 'topic_ids' ->> %(topic)s IS DISTINCT FROM %(topic_id)s AND status <> 'discarded'
 ORDER BY day
