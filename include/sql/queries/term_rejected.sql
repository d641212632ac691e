SELECT count(*) FROM generation_excluded WHERE generation_id = %(generation_id)s AND kind = 'rejected'
