DELETE FROM change_key
 WHERE (topic = %(member_topic)s AND row_id = %(member_id)s)
    OR (topic = %(board_topic)s AND (row_id = ANY (%(board_ids)s) OR value ->> 'memberId' = %(member_id)s::text))
