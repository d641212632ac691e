-- How much of the topic is archived: after `missing_until` nothing is missing; null when nothing is missing at all.
SELECT count(*) AS batches, max(gap_until) AS missing_until FROM archive_batch WHERE topic = %(topic)s
