UPDATE change_key
SET row_id = %(row_id)s, created_at = %(created_at)s, modified_at = %(modified_at)s, value = %(value)s
WHERE scope = %(scope)s AND key = %(key)s
