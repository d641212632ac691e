-- A board that waits in the generation and whose member has come: the row that stands there was covered with it, and
-- gives way to the same version with its new author.
DELETE FROM board_detail_live l
 USING stage_detail s, day_publication p
 WHERE s.{{key}} = l.{{key}} AND p.day = l.day
   AND (l.{{version}}, l.board_partition, l.board_offset) = (s.{{version}}, s.board_partition, s.board_offset)
   AND is_covered(p.generation_id, p.board_ends, p.member_ends, l.{{key}}, l.board_partition, l.board_offset,
                  l.member_partition, l.member_offset)
