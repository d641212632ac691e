-- Publishing a day waits for this transaction, and this one for a publication under way: the fence holds afterwards.
SELECT day - date '1970-01-01', generation_id
  FROM day_publication
 WHERE day IN (SELECT date '1970-01-01' + number FROM unnest(%(days)s::int[]) AS number)
 ORDER BY day FOR SHARE
