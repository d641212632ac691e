SELECT partition, "offset" FROM reject WHERE topic = %(topic)s AND rejected_by = 'repair'
