SELECT d.day, jsonb_object_agg(d.cause, d.count ORDER BY d.cause) AS causes, p.held_reason
  FROM dirty_day d JOIN day_publication p ON p.day = d.day
 GROUP BY d.day, p.held_reason
 ORDER BY d.day DESC
