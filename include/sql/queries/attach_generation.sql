SELECT generations.attach_table(%(generation_id)s, %(day)s, %(first_key)s, %(last_key)s, %(earliest)s, %(latest)s)
