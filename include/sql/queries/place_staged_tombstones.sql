-- A tombstone carries no day: it takes the day of the row that it deletes.
UPDATE stage_detail s
   SET day = known.day
  FROM (SELECT shown.{{key}}, shown.day FROM board_detail shown
         WHERE shown.{{key}} IN (SELECT {{key}} FROM stage_detail WHERE deleted AND day IS NULL)) known
 WHERE s.deleted AND s.day IS NULL AND known.{{key}} = s.{{key}}
RETURNING s.day - date '1970-01-01'
