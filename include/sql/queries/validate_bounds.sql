SELECT generations.validate_bounds(%(generation_id)s)
