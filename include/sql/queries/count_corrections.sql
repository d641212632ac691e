SELECT class, sum(count)::bigint
  FROM (SELECT class, count(*) FROM board_detail_correction WHERE generation_id = %(generation_id)s GROUP BY class
        UNION ALL
        SELECT u.key, u.value::bigint
          FROM generation g CROSS JOIN LATERAL jsonb_each_text(g.unlisted_corrections) u
         WHERE g.id = %(generation_id)s) counted
 GROUP BY class ORDER BY class
