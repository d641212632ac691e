SELECT count(*) AS count, extract(epoch FROM now() - min(pending_since))::float AS oldest_s FROM pending_board
