SELECT generations.index_table(%(generation_id)s)
