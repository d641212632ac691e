-- Was the generation built from a topic that was deleted and made again since?
SELECT NOT cut ? 'board' FROM generation WHERE id = %(generation_id)s
