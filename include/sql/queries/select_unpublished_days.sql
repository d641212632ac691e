-- Days of which something is known, and whether they show a generation: the stream opened them, records of them wait for
-- their member or are archived, or the system of record has boards of them. It is asked for the given days alone.
SELECT k.day, bool_or(p.generation_id IS NOT NULL) AS is_published
  FROM (SELECT day FROM day_publication
         UNION
        SELECT day FROM pending_board
         UNION
        SELECT day FROM archive_file WHERE kind = 'records' AND retired_at IS NULL
         UNION
        SELECT asked.day
          FROM unnest(%(days)s::date[], %(starts)s::text[], %(ends)s::text[]) AS asked (day, start_at, end_at)
         WHERE EXISTS (SELECT FROM board_document b
                        WHERE b.deleted_at IS NULL
                          AND (b.document ->> 'createdAt') COLLATE "C" >= asked.start_at
                          AND (b.document ->> 'createdAt') COLLATE "C" < asked.end_at)) k
  LEFT JOIN day_publication p ON p.day = k.day
 WHERE k.day BETWEEN '0001-01-01' AND %(newest)s
 GROUP BY k.day
