SELECT generations.analyze_table(%(generation_id)s)
