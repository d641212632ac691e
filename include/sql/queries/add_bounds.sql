SELECT generations.add_bounds(%(generation_id)s)
