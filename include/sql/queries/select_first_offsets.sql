-- Where the records of a day begin that is known already: a client's clock may have been ahead by days.
SELECT board_partition, min(board_offset), kafka_partition, min(kafka_offset)
  FROM (SELECT board_partition, board_offset, kafka_partition, kafka_offset
          FROM board_detail_live WHERE day = %(day)s
         UNION ALL
        SELECT f.board_partition, f.board_offset, f.kafka_partition, f.kafka_offset
          FROM board_detail_final f JOIN day_publication p ON p.generation_id = f.generation_id
         WHERE p.day = %(day)s AND f.day = %(day)s AND p.cut ? %(topic)s
         UNION ALL
        SELECT e.board_partition, e.board_offset, NULL, NULL
          FROM generation_excluded e JOIN day_publication p ON p.generation_id = e.generation_id
         WHERE p.day = %(day)s AND p.cut ? %(topic)s
         UNION ALL
        SELECT partition, "offset", NULL, NULL FROM pending_board WHERE day = %(day)s AND topic = %(topic)s) known
 WHERE board_partition >= 0  -- those of a topic that was replaced are negative
 GROUP BY board_partition, kafka_partition
