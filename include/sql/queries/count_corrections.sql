SELECT class, count(*) FROM board_detail_correction WHERE generation_id = %(generation_id)s GROUP BY class ORDER BY class
