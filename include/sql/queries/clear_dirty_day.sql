-- All causes, or these. Locked in the order in which a check of days marks them.
WITH cleared AS (
    SELECT cause FROM dirty_day
     WHERE day = %(day)s AND (%(causes)s::text[] IS NULL OR cause = ANY (%(causes)s))
     ORDER BY cause FOR UPDATE
)
DELETE FROM dirty_day d USING cleared c WHERE d.day = %(day)s AND d.cause = c.cause
