-- A tombstone carries no day: it takes the day of the row that it deletes.
UPDATE stage_detail s
   SET day = shown.day
  FROM board_detail shown
 WHERE s.deleted AND s.day IS NULL AND shown.{{key}} = s.{{key}}
