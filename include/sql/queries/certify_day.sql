UPDATE day_publication
   SET status = 'certified', certified_at = now()
 WHERE day = %(day)s AND generation_id = %(generation_id)s
   AND raw_distinct = row_count + pending_count + rejected_count
