DELETE FROM board_document WHERE document ->> 'memberId' = %(member_id)s::text
