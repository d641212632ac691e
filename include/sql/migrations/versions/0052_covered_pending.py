"""Pending records that a published day covers, and counts without rows whose newest version waits."""

from alembic import op

revision = "0052"
down_revision = "0051"

COLUMN = """
ALTER TABLE pending_record ADD COLUMN covered_by bigint, ADD COLUMN hides boolean NOT NULL DEFAULT true;
GRANT UPDATE (covered_by, hides), DELETE ON pending_record TO batch;
GRANT SELECT (covered_by) ON pending_record TO integrity;
"""

NAMED = r"""
DO $outer$
DECLARE
    -- names that differ between pipelines; a database that keeps no definition is of board_detail
    kept jsonb := (SELECT s.value::jsonb FROM pipeline_setting s WHERE s.name = 'definition');
    named jsonb := jsonb_build_object(
        'key', (SELECT attname FROM pg_attribute WHERE attrelid = 'detail_correction'::regclass AND attnum = 3),
        'version', COALESCE((SELECT o.described ->> 'name'
                               FROM jsonb_array_elements(kept #> '{output,columns}') o (described)
                              WHERE o.described ->> 'source' = 'stream ' || (kept #>> '{stream,version}') LIMIT 1),
                            'modified_at'),
        'stream', COALESCE(kept #>> '{stream,topic}', 'board'),
        'table', COALESCE(kept #>> '{table,topic}', 'member'),
        'view', (SELECT v.relname FROM pg_class v JOIN pg_class m ON m.relname = v.relname || '_masked'
                  WHERE v.relkind = 'v' AND m.relkind = 'v' AND v.relnamespace = 'public'::regnamespace
                    AND m.relnamespace = 'public'::regnamespace));
    statements text := $create$
COMMENT ON COLUMN generation.first_key IS
    'The smallest {{stream}} id of its rows and of what is pending; null without either.';
COMMENT ON COLUMN generation.last_key IS
    'The greatest {{stream}} id of its rows and of what is pending; null without either.';
UPDATE generation g
   SET first_key = LEAST(g.first_key, p.first_key), last_key = GREATEST(g.last_key, p.last_key)
  FROM (SELECT generation_id, min({{key}}) AS first_key, max({{key}}) AS last_key
          FROM generation_excluded WHERE kind = 'pending' GROUP BY generation_id) p
 WHERE g.id = p.generation_id AND g.status <> 'building';

COMMENT ON COLUMN pending_record.covered_by IS
    'The generation that its day shows, if it has this version of the {{stream}} or a newer one. Null while it waits.';
COMMENT ON COLUMN pending_record.hides IS
    'False if {{view}} can have no version of the {{stream}}: while the record waits, there is nothing to hide.';

CREATE OR REPLACE FUNCTION shown_rows(of_day date) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_variable
DECLARE
    p day_publication;
    on_top bigint[];
    alive bigint;
    hidden bigint;
    replaced bigint := 0;
BEGIN
    SELECT * INTO p FROM day_publication WHERE day = of_day;
    SELECT array_agg(l.{{key}}) FILTER (WHERE p.generation_id IS NOT NULL), count(*) FILTER (WHERE NOT l.deleted)
      INTO on_top, alive
      FROM detail_live l
     WHERE l.day = of_day
       AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                          l.stream_offset, l.table_partition, l.table_offset);
    IF on_top IS NOT NULL THEN
        SELECT count(*) INTO replaced
          FROM detail_final f
         WHERE f.day = of_day AND f.generation_id = p.generation_id AND f.{{key}} = ANY (on_top);
    END IF;
    SELECT count(*) INTO hidden
      FROM detail_live l
     WHERE l.day = of_day AND NOT l.deleted
       AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                          l.stream_offset, l.table_partition, l.table_offset)
       AND EXISTS (SELECT 1 FROM pending_record w WHERE w.{{key}} = l.{{key}} AND w.covered_by IS NULL);
    IF EXISTS (SELECT 1 FROM generation g JOIN pending_record w ON w.{{key}} BETWEEN g.first_key AND g.last_key
                WHERE g.id = p.generation_id AND w.covered_by IS NULL) THEN
        SELECT hidden + count(*) INTO hidden
          FROM detail_final f
         WHERE f.day = of_day AND f.generation_id = p.generation_id
           AND f.{{key}} <> ALL (COALESCE(on_top, '{}'))
           AND EXISTS (SELECT 1 FROM pending_record w WHERE w.{{key}} = f.{{key}} AND w.covered_by IS NULL);
    END IF;
    RETURN CASE WHEN p.day IS NOT NULL THEN COALESCE(p.row_count, 0) - replaced + alive - hidden END;
END
$$;

CREATE VIEW waiting_record AS
SELECT w.{{key}}, w.day, w.pending_since AS since FROM pending_record w WHERE w.covered_by IS NULL
 UNION ALL
SELECT e.{{key}}, p.day, p.published_at
  FROM day_publication p JOIN generation_excluded e ON e.generation_id = p.generation_id AND e.kind = 'pending'
 WHERE p.pending_count > 0
   AND NOT EXISTS (SELECT FROM detail_live l
                    WHERE l.{{key}} = e.{{key}}
                      AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                                         l.stream_offset, l.table_partition, l.table_offset));
GRANT SELECT ON waiting_record TO stream, batch, integrity;
COMMENT ON VIEW waiting_record IS
    '{{stream}}s that wait for their {{table}} now, once or several times: their records wait, or the generation that'
    ' their day shows has them as pending.';

CREATE OR REPLACE VIEW day_status AS
SELECT p.day,
       p.status,
       p.raw_distinct,
       COALESCE(p.row_count, 0) AS row_count,
       (SELECT count(DISTINCT w.{{key}}) FROM waiting_record w WHERE w.day = p.day) AS pending_count,
       COALESCE(p.rejected_count, 0) AS rejected_count,
       (SELECT count(*) FROM detail_correction c WHERE c.generation_id = p.generation_id) AS correction_count,
       (SELECT count(*) FROM detail_live l
         WHERE l.day = p.day AND NOT l.deleted
           AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                              l.stream_offset, l.table_partition, l.table_offset)
           AND NOT EXISTS (SELECT FROM pending_record w
                            WHERE w.{{key}} = l.{{key}} AND w.covered_by IS NULL)) AS live_row_count,
       (SELECT COALESCE(sum(d.count), 0)::bigint FROM dirty_day d WHERE d.day = p.day) AS dirty_count,
       p.generation_id,
       p.published_at,
       p.day + (SELECT s.value::integer FROM pipeline_setting s WHERE s.name = 'retention_days')
           AS rebuildable_until,
       shown_rows(p.day) AS shown_rows,
       p.moved_at
  FROM day_publication p;

COMMENT ON COLUMN day_status.pending_count IS '{{stream}}s that wait for their {{table}} now: {{view}} shows none.';
COMMENT ON COLUMN day_status.live_row_count IS 'Rows of the speed layer that are shown on top of the generation.';
COMMENT ON COLUMN day_status.shown_rows IS
    'Rows of the day that {{view}} shows: row_count and live_row_count, an edited {{stream}} counted once, without'
    ' those whose newest version waits.';
$create$;
    -- of one day, so that the tables of no other are opened
    covering text := $cover$
UPDATE pending_record w
   SET covered_by = p.generation_id
  FROM day_publication p
 WHERE p.day = '{{day}}' AND w.day = '{{day}}'
   AND (COALESCE(w."offset" < p.stream_ends[w.partition + 1], false) AND NOT was_pending(p.generation_id, w.{{key}})
        OR EXISTS (SELECT 1 FROM detail_final f
                    WHERE f.day = '{{day}}' AND f.generation_id = {{generation}} AND f.{{key}} = w.{{key}}
                      AND ((f.{{version}}, ordered_offset(f.stream_offset, p.stream_ends))
                           >= (w.version_at, w."offset")
                           OR f.{{version}} = w.version_at AND f.event_id = w.event_id))
        OR EXISTS (SELECT 1 FROM generation_excluded e
                    WHERE e.generation_id = {{generation}} AND e.{{key}} = w.{{key}}
                      AND (e.version_at, ordered_offset(e.stream_offset, p.stream_ends))
                          >= (w.version_at, w."offset")))
$cover$;
    name text;
    published record;
BEGIN
    FOREACH name IN ARRAY ARRAY['key', 'version'] LOOP
        statements := replace(statements, '{{' || name || '}}', quote_ident(named ->> name));
        covering := replace(covering, '{{' || name || '}}', quote_ident(named ->> name));
    END LOOP;
    FOREACH name IN ARRAY ARRAY['stream', 'table', 'view'] LOOP
        statements := replace(statements, '{{' || name || '}}', named ->> name);
    END LOOP;
    EXECUTE statements;
    FOR published IN SELECT p.day, p.generation_id FROM day_publication p
                      WHERE p.generation_id IS NOT NULL AND EXISTS (SELECT FROM pending_record w WHERE w.day = p.day)
    LOOP
        EXECUTE replace(replace(covering, '{{day}}', published.day::text),
                        '{{generation}}', published.generation_id::text);
    END LOOP;
END
$outer$;
"""


def upgrade() -> None:
    """Add the column, mark the records that are there, and replace the counts."""
    for statements in (COLUMN, NAMED):
        op.execute(statements)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
