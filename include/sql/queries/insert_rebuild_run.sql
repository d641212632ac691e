INSERT INTO rebuild_run (generation_id, day, run_id, host, source, phase, records_total, parts_total)
VALUES (%(generation_id)s, %(day)s, %(run_id)s, %(host)s, %(source)s, 'reading', %(records_total)s, %(parts_total)s)
