-- Covered rows that the target does not cover come back, some at a time in the order of their keys. No reader sees them
-- yet: what the day shows now covers them still. The newest version stays.
SET LOCAL enable_sort = off;  -- in the order of the key by the index: a sort would read the whole day each time
SET LOCAL enable_bitmapscan = off;
WITH chosen AS (
    SELECT c.{{key}}
      FROM board_detail_covered c JOIN day_publication p ON p.day = c.day
      LEFT JOIN generation g ON g.id = %(generation_id)s
     WHERE c.day = %(day)s AND c.{{key}} > %(after)s
       AND is_covered(p.generation_id, p.board_ends, p.member_ends, c.{{key}}, c.board_partition, c.board_offset,
                      c.member_partition, c.member_offset)
       AND NOT is_covered(g.id, g.board_ends, g.member_ends, c.{{key}}, c.board_partition, c.board_offset,
                          c.member_partition, c.member_offset)
       AND NOT EXISTS (SELECT 1 FROM board_detail_live l WHERE l.{{key}} = c.{{key}} AND l.day IS DISTINCT FROM c.day)
     ORDER BY c.{{key}} LIMIT %(limit)s
), gone AS (
    DELETE FROM board_detail_covered c USING chosen WHERE c.day = %(day)s AND c.{{key}} = chosen.{{key}}
    RETURNING c.*
), back AS (
    INSERT INTO board_detail_live AS l ({{served}}, day, deleted, written_at)
    SELECT {{served}}, day, deleted, written_at FROM gone
    ON CONFLICT ({{key}}) DO UPDATE
       SET {{served_excluded}}, day = excluded.day, deleted = excluded.deleted, written_at = excluded.written_at
     WHERE (excluded.{{version}}, excluded.board_offset) > (l.{{version}}, l.board_offset)
)
SELECT count(*), max({{key}}) FROM gone
