UPDATE archive_batch SET record_count = record_count - %(count)s WHERE id = %(batch_id)s
