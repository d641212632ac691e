UPDATE stage_detail s
   SET day = known.day
  FROM (SELECT f.{{key}}, p.day
          FROM stage_detail t JOIN board_detail_final f ON f.{{key}} = t.{{key}}
          JOIN day_publication p ON p.generation_id = f.generation_id
         WHERE t.deleted AND t.day IS NULL
        UNION ALL
        SELECT l.{{key}}, l.day
          FROM stage_detail t JOIN board_detail_live l ON l.{{key}} = t.{{key}}
         WHERE t.deleted AND t.day IS NULL AND NOT l.deleted) known
 WHERE s.deleted AND s.day IS NULL AND known.{{key}} = s.{{key}}
RETURNING s.day - date '1970-01-01'
