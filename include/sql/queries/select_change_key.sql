SELECT fingerprint, row_id, created_at, modified_at, value
FROM change_key
WHERE scope = %(scope)s AND key = %(key)s
