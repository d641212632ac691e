-- Locks that were taken since are let go.
ROLLBACK TO SAVEPOINT look
