-- The lock lets a later driver take the lease only after this transaction.
SELECT epoch, driver_id, host FROM stream_driver WHERE application = %(application)s FOR SHARE
