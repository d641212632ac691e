-- Boards that readers see, that the generation lacks, and whose absence raw does not explain, and boards that come back
-- although they were deleted or moved; and some of their ids.
SELECT count(*), (array_agg(board_id ORDER BY board_id))[1:5]
  FROM board_detail_correction
 WHERE generation_id = %(generation_id)s AND class = 'unexplained' AND (rebuilt IS NULL OR shown IS NULL)
