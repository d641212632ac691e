SELECT id FROM (
    SELECT id, status, row_number() OVER (ORDER BY id DESC) AS nth
      FROM generation
     WHERE day = %(day)s AND status IN ('published', 'superseded')) kept
 WHERE nth > %(keep)s AND status = 'superseded'
