DELETE FROM archive_file WHERE path = ANY (%(paths)s) AND retired_at IS NOT NULL
