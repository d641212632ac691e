-- One row a board: its newest version, and of that the copy that reached the topic first.
DELETE FROM stage_detail s
 USING (SELECT ctid, row_number() OVER (PARTITION BY {{key}}
                                        ORDER BY {{version}} DESC, board_offset DESC, kafka_partition, kafka_offset) AS nth
          FROM stage_detail) ranked
 WHERE s.ctid = ranked.ctid AND ranked.nth > 1
