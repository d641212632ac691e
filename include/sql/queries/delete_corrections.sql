-- The duplicates were counted by the build; the rest is compared anew.
DELETE FROM board_detail_correction WHERE generation_id = %(generation_id)s AND class <> 'duplicate';
UPDATE generation SET unlisted_corrections = NULL WHERE id = %(generation_id)s
