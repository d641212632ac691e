-- a version is always newer than the one before, also when the clock went back or two changes share a millisecond
UPDATE member
SET nickname = %(nickname)s, city = %(city)s, phone = %(phone)s, email = %(email)s,
    modified_at = greatest(date_trunc('milliseconds', clock_timestamp()), modified_at + interval '1 millisecond')
WHERE id = %(id)s AND deleted_at IS NULL
RETURNING id, nickname, city, phone, email, created_at, modified_at
