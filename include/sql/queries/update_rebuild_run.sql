-- The parts that hold rows come first; what is claimed beyond them are decisions about boards.
UPDATE rebuild_run r
   SET phase_at = CASE WHEN r.phase = %(phase)s THEN r.phase_at ELSE now() END, phase = %(phase)s,
       records_read = GREATEST(r.records_read, %(records_read)s), error = %(error)s,
       parts_loaded = l.parts, rows_loaded = l.row_count,
       finished_at = CASE WHEN %(phase)s IN ('built', 'failed') THEN now() END
  FROM (SELECT count(*) AS parts, COALESCE(sum(row_count), 0) AS row_count
          FROM generation_load
         WHERE generation_id = %(generation_id)s AND part >= 0) l
 WHERE r.generation_id = %(generation_id)s
RETURNING r.records_read, r.records_total, r.parts_loaded, r.parts_total, r.rows_loaded
