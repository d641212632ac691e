-- A tombstone carries no day: it takes the day of the row that it deletes, shown already or in the same batch.
UPDATE stage_detail s
   SET day = known.day
  FROM (SELECT {{key}}, day FROM stage_detail WHERE NOT deleted
        UNION ALL
        SELECT shown.{{key}}, shown.day FROM board_detail shown
         WHERE shown.{{key}} IN (SELECT {{key}} FROM stage_detail WHERE deleted)) known
 WHERE s.deleted AND s.day IS NULL AND known.{{key}} = s.{{key}}
