SELECT 1 FROM pg_inherits
 WHERE inhparent = 'board_detail_final'::regclass AND inhrelid = to_regclass(%(table)s) AND NOT inhdetachpending
