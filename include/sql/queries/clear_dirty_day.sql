-- All causes, or one.
DELETE FROM dirty_day WHERE day = %(day)s AND (%(cause)s::text IS NULL OR cause = %(cause)s)
