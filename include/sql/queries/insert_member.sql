INSERT INTO member (nickname, city, phone, email, created_at, modified_at)
SELECT %(nickname)s, %(city)s, %(phone)s, %(email)s, made.at, made.at
FROM (SELECT date_trunc('milliseconds', clock_timestamp()) AS at) AS made
RETURNING id, nickname, city, phone, email, created_at, modified_at
