-- The duplicates were counted by the build; the rest is compared anew.
DELETE FROM board_detail_correction WHERE generation_id = %(generation_id)s AND class <> 'duplicate'
