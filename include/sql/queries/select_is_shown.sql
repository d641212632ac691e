-- The generation that the day shows, if any; and does the speed layer have rows of the day?
SELECT (SELECT generation_id FROM day_publication WHERE day = %(day)s),
       EXISTS (SELECT 1 FROM board_detail_live WHERE day = %(day)s)
