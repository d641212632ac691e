SELECT clock_timestamp() - make_interval(secs => %(min_age_s)s)
