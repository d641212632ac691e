-- Fewer rows than paths means that another run retired one, and this transaction must not commit.
UPDATE archive_file SET retired_at = now() WHERE path = ANY (%(paths)s) AND retired_at IS NULL
