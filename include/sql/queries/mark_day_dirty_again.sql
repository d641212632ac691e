-- What stays on top of the generation just published reached the day after its cut.
INSERT INTO dirty_day (day, cause, count)
SELECT %(day)s, 'late board', count(*) FROM board_detail_live WHERE day = %(day)s HAVING count(*) > 0
