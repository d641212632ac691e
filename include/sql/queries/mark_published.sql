UPDATE generation
   SET status = CASE WHEN id = %(generation_id)s THEN 'published' ELSE 'superseded' END,
       published_at = CASE WHEN id = %(generation_id)s THEN now() ELSE published_at END
 WHERE day = %(day)s AND (id = %(generation_id)s OR status = 'published')
