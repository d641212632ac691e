-- Nothing is loaded into a generation that was discarded meanwhile: its driver may live on without knowing.
INSERT INTO generation_load (generation_id, part, row_count)
SELECT id, %(part)s, %(row_count)s FROM generation WHERE id = %(generation_id)s AND status = 'building' FOR KEY SHARE
ON CONFLICT DO NOTHING
