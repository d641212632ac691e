-- No cut covers these rows from now on, and a record of the topic that is there now is newer in the same version.
UPDATE board_detail_covered
   SET board_partition = -1 - board_partition, board_offset = ordered_offset(board_offset, NULL)
 WHERE day IS NOT DISTINCT FROM %(day)s AND board_partition >= 0
