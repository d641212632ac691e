-- A covered row is the newest that was served of its board, wherever it was moved since: an older version is no news.
DELETE FROM stage_detail s
 USING board_detail_covered c
 WHERE c.{{key}} = s.{{key}} AND (c.{{version}}, c.board_offset) > (s.{{version}}, s.board_offset)
