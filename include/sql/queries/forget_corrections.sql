-- That there was a correction, and of which class, stays.
UPDATE board_detail_correction SET shown = NULL, rebuilt = NULL
 WHERE (shown IS NOT NULL OR rebuilt IS NOT NULL)
   AND (board_id = ANY (%(board_ids)s)
        OR shown ->> 'member_id' = %(member_id)s::text OR rebuilt ->> 'member_id' = %(member_id)s::text)
