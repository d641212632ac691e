-- Waits for batches with tombstones that were looked for in the days as they are shown now.
SELECT pg_advisory_xact_lock(7203004, 0)
