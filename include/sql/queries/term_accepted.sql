SELECT sum(value::bigint) FROM day_certificate
 WHERE generation_id = %(generation_id)s AND term IN ('raw_distinct', 'fallback_pending')
