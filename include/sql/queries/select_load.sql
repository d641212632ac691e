SELECT row_count FROM generation_load WHERE generation_id = %(generation_id)s AND part = %(part)s
