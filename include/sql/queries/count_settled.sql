-- The day has just been pointed at the generation, whose cut hides the live rows below it: how many that hides, how many
-- it shows again, how many are on top of it, and which these are. By SELECT alone, so that the rows are read in
-- parallel: the speed layer waits meanwhile.
SELECT count(*) FILTER (WHERE is_covered AND NOT was_covered),
       count(*) FILTER (WHERE NOT is_covered AND was_covered),
       count(*) FILTER (WHERE NOT is_covered),
       array_agg({{key}}) FILTER (WHERE NOT is_covered AND %(generation_id)s::bigint IS NOT NULL)
  FROM (SELECT l.{{key}},
               is_covered(g.id, g.board_ends, g.member_ends, l.{{key}}, l.board_partition, l.board_offset,
                          l.member_partition, l.member_offset) AS is_covered,
               is_covered(o.id, o.board_ends, o.member_ends, l.{{key}}, l.board_partition, l.board_offset,
                          l.member_partition, l.member_offset) AS was_covered
          FROM board_detail_live l
          LEFT JOIN generation g ON g.id = %(generation_id)s
          LEFT JOIN generation o ON o.id = %(shown_id)s
         WHERE l.day = %(day)s) live
