SELECT {{columns}}, day, finality, kafka_partition, kafka_offset FROM board_detail_masked WHERE {{key}} = %(board_id)s
