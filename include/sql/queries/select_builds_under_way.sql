SELECT id, day FROM generation WHERE status = 'building' ORDER BY id
