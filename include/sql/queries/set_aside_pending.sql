-- Places in the topic that was deleted: records of the one made again have the same.
UPDATE pending_board SET topic = topic || '@' || %(from_topic_id)s WHERE topic = %(topic)s
