-- Was anything of the day shown before: a published generation, or rows of the speed layer?
SELECT EXISTS (SELECT 1 FROM day_publication WHERE day = %(day)s AND generation_id IS NOT NULL)
    OR EXISTS (SELECT 1 FROM board_detail_live WHERE day = %(day)s)
