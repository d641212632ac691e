SELECT path FROM archive_file WHERE retired_at < now() - make_interval(secs => %(after_s)s) ORDER BY path
