-- From this row on no rebuild shows the member. The boards found by an earlier run stay known.
INSERT INTO forgotten_member AS f (member_id, reason, made_by, board_ids)
VALUES (%(member_id)s, %(reason)s, %(made_by)s, %(board_ids)s)
ON CONFLICT (member_id) DO UPDATE
   SET reason = excluded.reason, made_by = excluded.made_by, last_at = now(),
       board_ids = ARRAY(SELECT DISTINCT unnest(f.board_ids || excluded.board_ids) ORDER BY 1)
RETURNING board_ids
