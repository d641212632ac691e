-- Transactions of the older driver that begin from now on queue behind this one: else it could wait for ever, because
-- FOR SHARE joins those that share the row's lock already.
LOCK TABLE stream_driver IN EXCLUSIVE MODE
