INSERT INTO board_detail_live AS l ({{served}}, day, deleted)
SELECT {{served}}, day, deleted FROM stage_detail ORDER BY {{key}}
ON CONFLICT ({{key}}) DO UPDATE
   SET {{served_excluded}}, day = COALESCE(excluded.day, l.day), deleted = excluded.deleted, written_at = now()
 WHERE (excluded.{{version}}, excluded.board_offset) > (l.{{version}}, l.board_offset)
