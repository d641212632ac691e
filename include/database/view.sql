-- The views that have the definition's columns, in its order, and the function that returns their rows. They are made
-- with the schema, and again when the definition has changed; see include.database.migrate.

-- A {{stream}} that waits for its {{table}} is hidden in its older versions too: the rebuild would show none either. NOT IN
-- keeps the condition out of the joins: a hash of the few that hide something, and a join would double a scan's time.

CREATE VIEW {{view}} AS
SELECT {{served_x}}, x.day, x.finality, x.shown_since
  FROM day_publication p
 CROSS JOIN LATERAL (
       SELECT {{served_f}}, f.day, 'final'::text AS finality, p.moved_at AS shown_since
         FROM (SELECT generation_id, day, {{served}}
                 FROM detail_final
               UNION ALL
               SELECT generation_id, day, {{served}}
                 FROM detail_empty) f
        WHERE ((f.day = p.day AND f.generation_id = p.generation_id) OR f.generation_id IS NULL)
          AND NOT EXISTS (SELECT 1 FROM detail_live l
                           WHERE l.day = p.day AND l.{{key}} = f.{{key}}
                             AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}},
                                                l.stream_partition, l.stream_offset, l.table_partition,
                                                l.table_offset))
       UNION ALL
       SELECT {{served_l}}, l.day, 'live'::text AS finality, GREATEST(l.written_at, p.moved_at) AS shown_since
         FROM detail_live l
        WHERE l.day = p.day AND NOT l.deleted
          AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                             l.stream_offset, l.table_partition, l.table_offset)) x
 WHERE x.day = p.day
   AND x.{{key}} NOT IN (SELECT w.{{key}} FROM pending_record w WHERE w.covered_by IS NULL AND w.hides);
COMMENT ON VIEW {{view}} IS
    'Every {{stream}} with its {{table}}: final days as rebuilt, the rest as streamed. Name the day by its value: WHERE'
    ' day = date ''2026-11-20''. finality ''final'': the row is of the rebuilt day; ''live'': the stream wrote it, and'
    ' the rebuild of its day may correct it. Ask freshness or is_fresh(interval ''1 minute'') how far the stream is,'
    ' and day_trust.summary whether a day can be trusted.';

CREATE VIEW {{view}}_masked AS
SELECT {{masked}}, day, finality, shown_since
  FROM {{view}};
COMMENT ON VIEW {{view}}_masked IS
    'Every {{stream}} with its {{table}}, as {{view}}, with personal values masked. Name the day by its value: WHERE'
    ' day = date ''2026-11-20''. finality ''final'': the row is of the rebuilt day; ''live'': the stream wrote it, and'
    ' the rebuild of its day may correct it. Ask freshness or is_fresh(interval ''1 minute'') how far the stream is,'
    ' and day_trust.summary whether a day can be trusted. {{view}}_certified has certified days only.';

-- Without the live rows: the certificate has not counted these. The last table is always empty. Without it PostgreSQL
-- would join the days with all their generations, instead of choosing one for each.
CREATE VIEW {{view}}_certified AS
SELECT {{masked}}, day, finality, shown_since
  FROM (SELECT {{served_x}}, x.day, x.finality, x.shown_since
          FROM day_publication p
         CROSS JOIN LATERAL (
               SELECT {{served_f}}, f.day, 'final'::text AS finality, p.certified_at AS shown_since
                 FROM (SELECT generation_id, day, {{served}}
                         FROM detail_final
                       UNION ALL
                       SELECT generation_id, day, {{served}}
                         FROM detail_empty) f
                WHERE (f.day = p.day AND f.generation_id = p.generation_id) OR f.generation_id IS NULL
               UNION ALL
               SELECT {{served}}, day, 'final', p.certified_at FROM detail_empty) x
         WHERE x.day = p.day AND p.status = 'certified') certified;
COMMENT ON VIEW {{view}}_certified IS
    'Days that are certified, and no other, with personal values masked: the rows that the certificate counted. What'
    ' arrived since is in {{view}}_masked at once, and here when its day is certified again. Name the day by its value:'
    ' WHERE day = date ''2026-11-20''.';

DO $$
DECLARE
    relation text;
    described text[];
BEGIN
    FOREACH relation IN ARRAY ARRAY['{{view}}', '{{view}}_masked', '{{view}}_certified'] LOOP
        FOREACH described SLICE 1 IN ARRAY ARRAY[
            {{descriptions}},
            ['day', 'The day the {{stream}} belongs to: the date of {{day_from}} in the pipeline''s time zone.'],
            ['finality', '''final'' once the day was rebuilt and published, ''live'' until then.'],
            ['shown_since', 'Since when the row is shown as it is: when the stream wrote it, or its day began to show'
                            ' its generation, whichever is later. Either transaction can commit up to two minutes'
                            ' after it.']]
        LOOP
            EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', relation, described[1], described[2] || CASE
                WHEN relation <> '{{view}}' AND described[1] = ANY ('{{{personal}}}')
                THEN ' Masked: its last two characters are shown; role analyst_personal sees it.' ELSE '' END);
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON COLUMN {{view}}_certified.finality IS '''final'': every row is of the rebuilt day.';
COMMENT ON COLUMN {{view}}_certified.shown_since IS
    'When the day was certified. The transaction can commit up to two minutes after it.';

-- The bounds of generations tell which days can have keys. Each of these days is a query of its own, with its keys alone.
-- A query of the view with the tables and keys of all these days takes four times as long.
CREATE FUNCTION {{view}}_by_key(keys bigint[]) RETURNS SETOF {{view}}_masked
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
DECLARE
    stream_keys bigint[];
    shown record;
BEGIN
    IF cardinality(keys) > 1000 THEN
        RAISE program_limit_exceeded
            USING MESSAGE = format('{{view}}_by_key was called with %s keys; 1000 is the most', cardinality(keys)),
                  HINT = 'Call it several times, or join {{view}}_masked with a list of keys and name the days.';
    END IF;
    SELECT array_agg(DISTINCT k.asked ORDER BY k.asked) INTO stream_keys
      FROM unnest(keys) k (asked)
     WHERE k.asked IS NOT NULL
       AND k.asked NOT IN (SELECT w.{{key}} FROM pending_record w WHERE w.covered_by IS NULL AND w.hides);
    RETURN QUERY
    SELECT {{masked}}, x.day, 'live', x.shown_since
      FROM (SELECT {{served_l}}, l.day, GREATEST(l.written_at, p.moved_at) AS shown_since
              FROM detail_live l JOIN day_publication p ON p.day = l.day
             WHERE l.{{key}} = ANY (stream_keys) AND NOT l.deleted
               AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                                  l.stream_offset, l.table_partition, l.table_offset)) x;
    FOR shown IN
        SELECT p.day, p.generation_id, p.moved_at,
               ARRAY(SELECT k.asked
                       FROM unnest(stream_keys[b.below + 1:b.within]) k (asked)
                      WHERE NOT EXISTS (SELECT 1 FROM detail_live l
                                         WHERE l.{{key}} = k.asked AND l.day = p.day
                                           AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}},
                                                              l.stream_partition, l.stream_offset, l.table_partition,
                                                              l.table_offset))) AS shown_keys
          FROM day_publication p JOIN generation g ON g.id = p.generation_id
               -- how many of the keys are below the generation's first one, and not above its last one
         CROSS JOIN LATERAL (SELECT width_bucket(g.first_key, stream_keys)
                                    - (g.first_key = ANY (stream_keys))::integer AS below,
                                    width_bucket(g.last_key, stream_keys) AS within) b
         WHERE b.below < b.within
    LOOP
        RETURN QUERY
        SELECT {{masked}}, f.day, 'final', shown.moved_at
          FROM detail_final f
         WHERE f.day = shown.day AND f.generation_id = shown.generation_id AND f.{{key}} = ANY (shown.shown_keys);
    END LOOP;
END
$$;
COMMENT ON FUNCTION {{view}}_by_key IS
    'The rows of {{view}}_masked with these keys, at most 1000, whatever their days; it opens the tables of days'
    ' that can have them.';

GRANT SELECT ON {{view}} TO stream, batch, analyst_personal;
GRANT SELECT ON {{view}}_masked, {{view}}_certified TO batch, analyst, analyst_personal;
GRANT SELECT ({{key}}, day, finality) ON {{view}} TO integrity;
REVOKE EXECUTE ON FUNCTION {{view}}_by_key FROM PUBLIC;
GRANT EXECUTE ON FUNCTION {{view}}_by_key TO batch, analyst, analyst_personal;
