-- Of each published day: when, and up to where of the topic it was built.
SELECT published_at, cut -> %(topic)s FROM day_publication WHERE generation_id IS NOT NULL
