-- Unless a day was entered again meanwhile. Locked in the order in which others enter days.
WITH checked AS (
    SELECT u.day
      FROM unchecked_day u JOIN unnest(%(days)s::date[], %(requests)s::bigint[]) AS c (day, request) USING (day, request)
     ORDER BY u.day FOR UPDATE OF u
)
DELETE FROM unchecked_day u USING checked c WHERE u.day = c.day
