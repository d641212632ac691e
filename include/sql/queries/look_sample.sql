SELECT {{columns}}, finality, kafka_partition, kafka_offset FROM board_detail_masked WHERE day = %(day)s ORDER BY {{key}} DESC LIMIT %(limit)s
