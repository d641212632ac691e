INSERT INTO archive_batch (run_id, topic, topic_id, starts, ends, newest, record_count, gap, gap_since, gap_until,
                           gap_reason, taken_at)
VALUES (%(run_id)s, %(topic)s, %(topic_id)s, %(starts)s, %(ends)s, %(newest)s, %(record_count)s, %(gap)s,
        %(gap_since)s, %(gap_until)s, %(gap_reason)s, %(taken_at)s)
RETURNING id
