-- The lock lets a later driver take the lease only after this transaction.
SELECT epoch, host FROM stream_driver WHERE application = %(application)s FOR SHARE
