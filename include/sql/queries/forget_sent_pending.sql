-- Details that were sent may be among the lost ones; sending a board twice does no harm.
UPDATE pending_board SET sent_at = NULL WHERE sent_at IS NOT NULL
