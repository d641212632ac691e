-- Boards that may read otherwise once the generation is published. Of each side only the key and a hash of what it shows
-- are joined: that takes little memory however long the texts are. The live rows are read once, and not looked up one by
-- one: after a publication the index leads to many that are gone. No generation is 0: with a NULL the whole condition
-- would be false, the day as well, and the tables of all days be opened.
SET LOCAL work_mem = '64MB';  -- for keys and hashes of a million boards
CREATE TEMPORARY TABLE changed_board ON COMMIT DROP AS
WITH live AS MATERIALIZED (
    SELECT l.{{key}}, hash_record_extended(ROW({{columns_l}}), 0) AS content, l.deleted
      FROM board_detail_live l LEFT JOIN day_publication p ON p.day = l.day
     WHERE l.day = %(day)s
       AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.{{key}}, l.board_partition, l.board_offset,
                          l.member_partition, l.member_offset)
), shown AS (
    SELECT {{key}}, hash_record_extended(ROW({{columns}}), 0) AS content
      FROM board_detail_final f
     WHERE f.day = %(day)s AND f.generation_id = COALESCE(%(shown_id)s, 0)
       AND NOT EXISTS (SELECT 1 FROM live l WHERE l.{{key}} = f.{{key}})
     UNION ALL
    SELECT {{key}}, content FROM live WHERE NOT deleted
)
SELECT COALESCE(b.{{key}}, s.{{key}}) AS board_id
  FROM (SELECT {{key}}, hash_record_extended(ROW({{columns}}), 0) AS content
          FROM board_detail_final
         WHERE day = %(day)s AND generation_id = %(generation_id)s) b
  FULL JOIN shown s ON s.{{key}} = b.{{key}}
 WHERE b.content IS DISTINCT FROM s.content
 UNION
-- and rows that were set aside since the day shows something newer: the publication may bring them back
SELECT c.{{key}}
  FROM board_detail_covered c JOIN generation g ON g.id = %(generation_id)s
 WHERE c.day = %(day)s
   AND NOT is_covered(g.id, g.board_ends, g.member_ends, c.{{key}}, c.board_partition, c.board_offset,
                      c.member_partition, c.member_offset)
