-- Publishing a day waits for this transaction, and this one for a publication under way: the fence below holds.
SELECT p.day FROM day_publication p
 WHERE p.day IN (SELECT s.day FROM stage_detail s) ORDER BY p.day FOR SHARE
