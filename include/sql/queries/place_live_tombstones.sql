-- A board deleted before the view ever showed it: only now it is known which day its tombstone must hide it in.
UPDATE board_detail_live l
   SET day = f.day
  FROM board_detail_final f
 WHERE l.day IS NULL AND l.deleted AND f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = l.{{key}}
