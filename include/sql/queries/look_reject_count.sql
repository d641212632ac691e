SELECT count(*) AS count FROM reject
