SELECT generations.index_members(%(generation_id)s)
