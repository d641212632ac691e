-- Made from the same board record as the row that stands there, by another record of the output topic.
SELECT count(*)
  FROM stage_detail s JOIN board_detail_live l USING ({{key}})
 WHERE (l.board_partition, l.board_offset) = (s.board_partition, s.board_offset)
   AND (l.kafka_partition, l.kafka_offset) IS DISTINCT FROM (s.kafka_partition, s.kafka_offset)
