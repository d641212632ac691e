-- All of them, or one.
SELECT day, request, has_moved FROM unchecked_day WHERE %(day)s::date IS NULL OR day = %(day)s ORDER BY day DESC
