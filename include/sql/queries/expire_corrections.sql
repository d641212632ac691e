-- Of builds that were given up: differences hold values of people.
DELETE FROM board_detail_correction c
 USING generation g
 WHERE g.id = c.generation_id AND g.status = 'discarded'
   AND g.created_at < now() - make_interval(days => %(days)s)
