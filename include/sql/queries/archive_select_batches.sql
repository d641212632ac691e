SELECT id, topic, topic_id, starts, ends, newest, record_count, gap, gap_since, gap_until, gap_reason, taken_at
  FROM archive_batch
 WHERE topic = %(topic)s
 ORDER BY id
