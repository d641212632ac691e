-- Days with rows of the speed layer that do not say yet that their topic was replaced.
SELECT day FROM board_detail_live WHERE board_partition >= 0 AND day IS NOT NULL
 UNION
SELECT day FROM board_detail_covered WHERE board_partition >= 0
