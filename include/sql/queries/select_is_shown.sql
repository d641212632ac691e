-- The generation that the day shows, if any; and was anything of the day shown before, from it or by the speed layer?
SELECT p.generation_id,
       p.generation_id IS NOT NULL OR EXISTS (SELECT 1 FROM board_detail_live WHERE day = %(day)s)
  FROM (SELECT 1) one LEFT JOIN day_publication p ON p.day = %(day)s
