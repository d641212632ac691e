"""Rights of role integrity for the state of the pipeline and for `find`, and the difference of two generations."""

from alembic import op

revision = "0041"
down_revision = "0040"

# names that differ between pipelines: the key's column, the version's column, the table's key and the view
GRANTS = r"""
DO $$
DECLARE
    key text := (SELECT attname FROM pg_attribute WHERE attrelid = 'detail_correction'::regclass AND attnum = 3);
    table_key text := (SELECT attname FROM pg_attribute WHERE attrelid = 'forgotten_key'::regclass AND attnum = 1);
    -- a database that keeps no definition is of board_detail
    version text := COALESCE((SELECT o.described ->> 'name'
                                FROM pipeline_setting s
                               CROSS JOIN jsonb_array_elements(s.value::jsonb #> '{output,columns}') o (described)
                               WHERE s.name = 'definition'
                                 AND o.described ->> 'source' = 'stream ' || (s.value::jsonb #>> '{stream,version}')
                               LIMIT 1), 'modified_at');
    shown text := (SELECT v.relname FROM pg_class v JOIN pg_class m ON m.relname = v.relname || '_masked'
                    WHERE v.relkind = 'v' AND m.relkind = 'v' AND v.relnamespace = 'public'::regnamespace
                      AND m.relnamespace = 'public'::regnamespace);
    served text := 'event_id, stream_partition, stream_offset, table_partition, table_offset, kafka_partition, '
                   'kafka_offset, day';
BEGIN
    EXECUTE format('GRANT SELECT (%I, %I, %s, deleted, written_at) ON detail_live TO integrity', key, version, served);
    EXECUTE format('GRANT SELECT (%I, %I, %s, deleted, generation_id, covered_at) ON detail_covered TO integrity',
                   key, version, served);
    EXECUTE format('GRANT SELECT (%I, %I, %s, replayed, generation_id) ON detail_final TO integrity',
                   key, version, served);
    EXECUTE format('GRANT SELECT (partition, "offset", %I, %I, day, event_id, pending_since, version_at, sent_at)'
                   ' ON pending_record TO integrity', key, table_key);
    EXECUTE format('GRANT SELECT (%I, version_at, stream_partition, stream_offset) ON generation_excluded TO integrity',
                   key);
    EXECUTE format('GRANT SELECT (%I, day, finality) ON %I TO integrity', key, shown);
END
$$;
GRANT SELECT (topic, partition, "offset", key, reason, rejected_at) ON reject TO integrity;
GRANT SELECT (stream_keys, reason, last_at) ON forgotten_key TO integrity;
GRANT SELECT (day, generation_id) ON day_publication TO integrity;
GRANT SELECT (first_key, last_key) ON generation TO integrity;
GRANT SELECT ON offset_ledger, stream_progress TO integrity;
GRANT SELECT ON day_correction TO batch;
"""

DIFFERENCE = r"""
DO $outer$
DECLARE
    key text := (SELECT attname FROM pg_attribute WHERE attrelid = 'detail_correction'::regclass AND attnum = 3);
BEGIN
    EXECUTE replace($create$
CREATE FUNCTION generation_difference(of_day date, from_id bigint, to_id bigint, row_limit integer)
    RETURNS TABLE (class text, total bigint, key bigint, before jsonb, after jsonb, changed text[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    kept CONSTANT text[] := ARRAY['event_id', 'stream_partition', 'stream_offset', 'table_partition', 'table_offset',
                                  'kafka_partition', 'kafka_offset', 'generation_id', 'day', 'replayed'];
    names text := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
                    WHERE attrelid = 'detail_final'::regclass AND attnum > 0 AND NOT attisdropped
                      AND attname <> ALL (kept));
    personal text[] := (SELECT ARRAY(SELECT o.described ->> 'name'
                                       FROM jsonb_array_elements(s.value::jsonb #> '{output,columns}') o (described)
                                      WHERE (o.described ->> 'personal')::boolean)
                          FROM pipeline_setting s WHERE s.name = 'definition');
BEGIN
    IF personal IS NULL THEN
        RETURN;
    END IF;
    -- of each side only the key and a hash are joined, see compare_rows; the ids are values: two tables are opened
    RETURN QUERY EXECUTE format($query$
WITH differing AS MATERIALIZED (
    SELECT COALESCE(f.key, t.key) AS key, f.key IS NOT NULL AS had, t.key IS NOT NULL AS has
      FROM (SELECT {{key}} AS key, hash_record_extended(ROW(%1$s), 0) AS content FROM detail_final
             WHERE day = %2$L AND generation_id = %3$L) f
      FULL JOIN (SELECT {{key}} AS key, hash_record_extended(ROW(%1$s), 0) AS content FROM detail_final
                  WHERE day = %2$L AND generation_id = %4$L) t ON t.key = f.key
     WHERE f.content IS DISTINCT FROM t.content
), classed AS (
    SELECT CASE WHEN NOT had THEN 'added' WHEN NOT has THEN 'removed' ELSE 'changed' END AS class, key FROM differing
), numbered AS (
    SELECT class, count(*) OVER (PARTITION BY class) AS total, key,
           row_number() OVER (PARTITION BY class ORDER BY key) AS number
      FROM classed
)
SELECT n.class, n.total, n.key, hidden.was, hidden.now,
       ARRAY(SELECT name FROM jsonb_object_keys(sides.was) name WHERE sides.was -> name <> sides.now -> name)
  FROM (SELECT * FROM numbered ORDER BY number, class LIMIT %6$s) n
 CROSS JOIN LATERAL (
       SELECT (SELECT to_jsonb(f.*) - %5$L::text[] FROM detail_final f
                WHERE f.day = %2$L AND f.generation_id = %3$L AND f.{{key}} = n.key) AS was,
              (SELECT to_jsonb(f.*) - %5$L::text[] FROM detail_final f
                WHERE f.day = %2$L AND f.generation_id = %4$L AND f.{{key}} = n.key) AS now) sides
 CROSS JOIN LATERAL (
       SELECT (SELECT jsonb_object_agg(v.name, CASE WHEN v.name = ANY (%7$L::text[]) AND v.value <> 'null'
                                                    THEN '"(hidden)"' ELSE v.value END)
                 FROM jsonb_each(sides.was) v (name, value)) AS was,
              (SELECT jsonb_object_agg(v.name, CASE WHEN v.name = ANY (%7$L::text[]) AND v.value <> 'null'
                                                    THEN '"(hidden)"' ELSE v.value END)
                 FROM jsonb_each(sides.now) v (name, value)) AS now) hidden
 ORDER BY n.class, n.key
$query$, names, of_day, from_id, to_id, kept, LEAST(row_limit, 100), personal);
END
$$
$create$, '{{key}}', quote_ident(key));
END
$outer$;
COMMENT ON FUNCTION generation_difference IS
    'Rows that differ between two generations of a day, with the count of their class and personal values hidden; empty'
    ' without a kept definition.';
REVOKE EXECUTE ON FUNCTION generation_difference FROM PUBLIC;
GRANT EXECUTE ON FUNCTION generation_difference TO integrity;
"""


def upgrade() -> None:
    """Grant the rights, and make the function."""
    op.execute(GRANTS)
    op.execute(DIFFERENCE)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
