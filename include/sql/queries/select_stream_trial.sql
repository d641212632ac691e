SELECT at, size, failures, rejected, reason FROM stream_trial WHERE consumer = %(consumer)s AND topic_id = %(topic_id)s
