-- Was the generation built from less than what the day is known to hold? Offsets of another topic do not tell.
SELECT EXISTS (
    SELECT 1
      FROM day_publication p CROSS JOIN generation g
     CROSS JOIN LATERAL jsonb_each_text(p.cut -> 'board') AS shown (partition, end_offset)
     WHERE p.day = %(day)s AND g.id = %(generation_id)s
       AND NOT COALESCE(p.cut -> 'topic_ids' -> 'board' <> g.cut -> 'topic_ids' -> 'board', false)
       AND (g.cut -> 'board' ->> shown.partition)::bigint < shown.end_offset::bigint)
