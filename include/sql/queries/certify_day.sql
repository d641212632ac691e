UPDATE day_publication
   SET status = CASE WHEN %(is_certified)s THEN 'certified' ELSE 'rebuilt' END,
       certified_at = CASE WHEN %(is_certified)s THEN now() END
 WHERE day = %(day)s AND generation_id = %(generation_id)s
