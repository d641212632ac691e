-- Places in the topic that was deleted: records of the one made again have the same. Their details get these coordinates.
UPDATE pending_board
   SET topic = topic || '@' || %(from_topic_id)s, partition = -1 - partition, "offset" = ordered_offset("offset", NULL)
 WHERE topic = %(topic)s
