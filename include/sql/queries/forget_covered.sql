DELETE FROM board_detail_covered
 WHERE day = %(day)s AND covered_at < now() - make_interval(days => %(undo_days)s)
