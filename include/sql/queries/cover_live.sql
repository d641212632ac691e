-- Rows that the published generation covers, some at a time in the order of their keys. No reader sees them: neither
-- before nor after. A row that the speed layer holds is left for the next time. Set aside is the newest version.
SET LOCAL enable_sort = off;  -- in the order of the key by the index: a sort would read the whole day each time
SET LOCAL enable_bitmapscan = off;
WITH chosen AS (
    SELECT l.{{key}}, p.generation_id, p.published_at
      FROM board_detail_live l JOIN day_publication p ON p.day = l.day
     WHERE l.day = %(day)s AND l.{{key}} > %(after)s
       AND is_covered(p.generation_id, p.board_ends, p.member_ends, l.{{key}}, l.board_partition, l.board_offset,
                      l.member_partition, l.member_offset)
     ORDER BY l.{{key}} LIMIT %(limit)s FOR UPDATE OF l SKIP LOCKED
), covered AS (
    DELETE FROM board_detail_live l USING chosen c WHERE l.{{key}} = c.{{key}}
    RETURNING l.*, c.generation_id, c.published_at
), kept AS (
    INSERT INTO board_detail_covered AS c ({{served}}, day, deleted, written_at, generation_id, covered_at)
    SELECT {{served}}, day, deleted, written_at, generation_id, published_at FROM covered
    ON CONFLICT (day, {{key}}) DO UPDATE
       SET {{served_excluded}}, deleted = excluded.deleted, written_at = excluded.written_at,
           generation_id = excluded.generation_id, covered_at = excluded.covered_at
     WHERE (excluded.{{version}}, excluded.board_offset) >= (c.{{version}}, c.board_offset)
)
SELECT count(*), max({{key}}) FROM covered
