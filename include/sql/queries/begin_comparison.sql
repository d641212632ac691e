-- One snapshot for all statements: what is compared is what stood there at the position that is kept with it.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ
