-- Was the generation built from a topic that was deleted and made again since, or is there one made again that the
-- stream has not gone to yet? Live rows are of the topic that the stream reads.
SELECT NOT g.cut ?& ARRAY['board', 'member']
       OR g.cut -> 'topic_ids' ? 'board'
          AND EXISTS (SELECT FROM offset_ledger WHERE consumer = 'join' AND topic = 'board')
          AND NOT EXISTS (SELECT FROM offset_ledger
                           WHERE consumer = 'join' AND topic_id = g.cut -> 'topic_ids' ->> 'board')
  FROM generation g
 WHERE g.id = %(generation_id)s
