-- What stays on top of the generation that the day shows reached it after its cut.
INSERT INTO dirty_day (day, cause, count)
SELECT %(day)s, 'late board', %(on_top)s WHERE %(on_top)s > 0
ON CONFLICT (day, cause) DO UPDATE SET count = excluded.count, last_at = now()
