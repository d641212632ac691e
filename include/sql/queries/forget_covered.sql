-- Deletions stay: a late replay of an older version would bring the board back.
DELETE FROM board_detail_covered
 WHERE NOT deleted AND day = %(day)s AND covered_at < now() - make_interval(days => %(undo_days)s)
