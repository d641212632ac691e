-- All causes, or these.
DELETE FROM dirty_day WHERE day = %(day)s AND (%(causes)s::text[] IS NULL OR cause = ANY (%(causes)s))
