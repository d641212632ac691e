SELECT DISTINCT board_id FROM (
    SELECT id AS board_id FROM board_document WHERE document ->> 'memberId' = %(member_id)s::text
    UNION ALL SELECT board_id FROM board_detail_live WHERE member_id = %(member_id)s
    UNION ALL SELECT board_id FROM board_detail_covered WHERE member_id = %(member_id)s
    UNION ALL SELECT board_id FROM board_detail_final WHERE member_id = %(member_id)s
    UNION ALL SELECT board_id FROM pending_board WHERE member_id = %(member_id)s) boards
 ORDER BY board_id
