-- Builds that were given up and that no day ever showed; what belongs to them goes with them.
DELETE FROM generation g
 WHERE g.status = 'discarded' AND g.created_at < now() - make_interval(days => %(days)s)
   AND to_regclass(format('generations.board_detail_final_g%%s', g.id)) IS NULL
   AND NOT EXISTS (SELECT 1 FROM publication p WHERE p.from_generation_id = g.id)
   AND NOT EXISTS (SELECT 1 FROM publication p WHERE p.to_generation_id = g.id)
