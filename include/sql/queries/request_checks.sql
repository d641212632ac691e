-- Days that show a generation for which one of the versions may be late. Of each partition the oldest version and the
-- last offset are given: a day that none of them concerns costs a look more. A day whose pointer moved is compared with
-- the others all the same.
INSERT INTO unchecked_day (day, has_moved)
SELECT p.day, false
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE EXISTS (
       SELECT 1
         FROM unnest(%(partitions)s::integer[], %(last_offsets)s::bigint[], %(oldest)s::timestamptz[])
                AS late (partition, last_offset, oldest)
        WHERE late.last_offset >= COALESCE(p.member_ends[late.partition + 1], 0)
          AND late.oldest <= COALESCE(g.newest_version_at, 'infinity'))
 ORDER BY p.day
ON CONFLICT (day) DO UPDATE SET request = DEFAULT
