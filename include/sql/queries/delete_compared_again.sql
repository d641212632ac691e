DELETE FROM board_detail_correction c
 USING changed_board b
 WHERE c.generation_id = %(generation_id)s AND c.board_id = b.board_id AND c.class <> 'duplicate'
