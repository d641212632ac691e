-- Locked in the order in which the stream locks them.
WITH gone AS (
    SELECT topic, partition, "offset" FROM pending_board WHERE member_id = %(member_id)s
     ORDER BY topic, partition, "offset" FOR UPDATE
)
DELETE FROM pending_board p
 USING gone g
 WHERE p.topic = g.topic AND p.partition = g.partition AND p."offset" = g."offset"
