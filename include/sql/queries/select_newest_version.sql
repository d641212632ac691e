SELECT COALESCE(max({{version}}), 'epoch') FROM {table}
