-- Days with a generation whose cut names another topic of that name. One without ids names none.
SELECT DISTINCT day
  FROM generation
 WHERE cut ? %(topic)s AND cut -> 'topic_ids' ->> %(topic)s <> %(topic_id)s AND status <> 'discarded'
 ORDER BY day
