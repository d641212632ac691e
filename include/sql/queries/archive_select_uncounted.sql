-- Batches whose files do not hold as many records as the batch says. Of the table's topic the raw records are counted.
SELECT b.id, b.record_count, COALESCE(sum(f.record_count), 0)::bigint AS listed
  FROM archive_batch b
  LEFT JOIN archive_file f ON f.batch_id = b.id AND f.kind <> 'versions' AND f.retired_at IS NULL
 GROUP BY b.id
HAVING b.record_count <> COALESCE(sum(f.record_count), 0)
 ORDER BY b.id
