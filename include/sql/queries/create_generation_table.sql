SELECT generations.create_table(%(generation_id)s, %(day)s)
