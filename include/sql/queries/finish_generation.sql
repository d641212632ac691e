UPDATE generation
   SET status = 'built', built_at = now(), raw_distinct = %(raw_distinct)s, row_count = %(row_count)s,
       pending_count = %(pending_count)s, rejected_count = %(rejected_count)s,
       duplicate_count = %(duplicate_count)s, misplaced_count = %(misplaced_count)s, content_hash = %(content_hash)s,
       first_key = %(first_key)s, last_key = %(last_key)s, newest_version_at = %(newest_version_at)s
 WHERE id = %(generation_id)s AND status = 'building'
