SELECT path FROM archive_file
