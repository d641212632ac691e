-- An earlier try of the same run, killed half way: the caller drops its table.
UPDATE generation SET status = 'discarded'
 WHERE day = %(day)s AND status IN ('building', 'built') AND (run_id = %(run_id)s OR status = 'building')
