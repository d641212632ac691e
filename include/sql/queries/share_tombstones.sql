-- A tombstone without a day is looked for in the published days: none of them may change until it is written.
SELECT pg_advisory_xact_lock_shared(7203004, 0)
