-- What stays on top of the generation that the day shows reached it after its cut; or no build can read its record.
INSERT INTO dirty_day (day, cause, count)
SELECT %(day)s, cause, found
  FROM (VALUES ('late board', %(on_top)s - %(unread)s), ('unread board', %(unread)s)) AS marked (cause, found)
 WHERE found > 0
ON CONFLICT (day, cause) DO UPDATE SET count = excluded.count, last_at = now()
