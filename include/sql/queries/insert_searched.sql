-- One that was removed meanwhile needs no search.
INSERT INTO searched_generation (generation_id)
SELECT id FROM generation WHERE id = ANY (%(ids)s::bigint[])
ON CONFLICT DO NOTHING
