-- The newest days, or one day, newest first.
SELECT s.day,
       s.status,
       s.row_count,
       s.pending_count,
       s.rejected_count,
       s.live_row_count,
       s.dirty_count,
       s.generation_id,
       s.published_at,
       t.certified_at,
       t.corrections,
       t.dirty,
       t.held_reason,
       t.uncertified_reason
  FROM day_status s JOIN day_trust t ON t.day = s.day
 WHERE %(day)s::date IS NULL OR s.day = %(day)s::date
 ORDER BY s.day DESC
 LIMIT %(limit)s
