-- A board is set aside once, in its newest version: what stands in the way of the rows that the next statement moves.
DELETE FROM board_detail_covered c
 USING board_detail_live l
 WHERE c.day = %(day)s AND l.day = c.day AND l.{{key}} = c.{{key}}
   AND (l.{{version}}, l.board_offset) >= (c.{{version}}, c.board_offset)
