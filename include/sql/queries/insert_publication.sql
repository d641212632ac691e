INSERT INTO publication (day, action, from_generation_id, to_generation_id, reason, made_by, covered_rows,
                         restored_rows)
VALUES (%(day)s, %(action)s, %(shown_id)s, %(generation_id)s, %(reason)s, %(made_by)s, %(covered)s, %(restored)s)
