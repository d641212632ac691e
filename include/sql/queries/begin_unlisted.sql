-- No board is compared one by one.
CREATE TEMPORARY TABLE changed_board (board_id bigint) ON COMMIT DROP
