"""Questions that a person was asked, and day_status as of now."""

from alembic import op

revision = "0047"
down_revision = "0046"

TABLES = """
ALTER TABLE generation ADD COLUMN asked_digest text;
COMMENT ON COLUMN generation.asked_digest IS
    'Digest of the unexplained differences that a person was asked to approve; null if nobody was.';
-- the view opens it: VACUUM must not shorten it, see 0030
ALTER TABLE generation_excluded SET (vacuum_truncate = off, toast.vacuum_truncate = off);
"""

# names differ between pipelines: the key's column, and the table in a comment
STATUS = r"""
DO $outer$
DECLARE
    key text := (SELECT attname FROM pg_attribute WHERE attrelid = 'detail_correction'::regclass AND attnum = 3);
BEGIN
    EXECUTE replace($create$
CREATE OR REPLACE VIEW day_status AS
SELECT p.day,
       p.status,
       p.raw_distinct,
       COALESCE(p.row_count, 0) AS row_count,
       (SELECT count(*)
          FROM (SELECT b.{{key}} FROM pending_record b WHERE b.day = p.day
                 UNION
                SELECT e.{{key}} FROM generation_excluded e
                 WHERE e.generation_id = p.generation_id AND e.kind = 'pending'
                   AND NOT EXISTS (SELECT FROM detail_live l WHERE l.{{key}} = e.{{key}})) pending) AS pending_count,
       COALESCE(p.rejected_count, 0) AS rejected_count,
       (SELECT count(*) FROM detail_correction c WHERE c.generation_id = p.generation_id) AS correction_count,
       (SELECT count(*) FROM detail_live l
         WHERE l.day = p.day AND NOT l.deleted
           AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                              l.stream_offset, l.table_partition, l.table_offset)) AS live_row_count,
       (SELECT COALESCE(sum(d.count), 0)::bigint FROM dirty_day d WHERE d.day = p.day) AS dirty_count,
       p.generation_id,
       p.published_at,
       p.day + (SELECT s.value::integer FROM pipeline_setting s WHERE s.name = 'retention_days')
           AS rebuildable_until,
       shown_rows(p.day) AS shown_rows,
       p.moved_at
  FROM day_publication p;
$create$, '{{key}}', quote_ident(key));
    EXECUTE format('COMMENT ON COLUMN day_status.pending_count IS %L',
                   regexp_replace(col_description('day_status'::regclass, 5), '[.]$', ' now.'));
END
$outer$;
COMMENT ON COLUMN day_status.moved_at IS
    'When the day last began to show another generation, or none; null if it never showed one.';
"""

TRUST = r"""
CREATE OR REPLACE VIEW day_trust AS
SELECT d.day,
       d.held_reason,
       d.uncertified_reason,
       d.certified_at,
       d.corrections,
       d.dirty,
       d.duplicate_count,
       concat_ws('; ',
           'held: undone' || CASE WHEN d.undone_by <> 'not said' THEN ' by ' || d.undone_by ELSE '' END
               || ', ' || d.held_reason,
           CASE WHEN d.generation_id IS NULL AND d.undone_by IS NOT NULL THEN 'the stream''s rows alone'
                WHEN d.generation_id IS NULL THEN 'provisional: the stream''s rows, not rebuilt yet'
                ELSE CASE WHEN d.status = 'certified' THEN 'certified'
                          ELSE COALESCE('rebuilt, not certified (' || d.uncertified_reason || ')',
                                        'rebuilt, not certified yet') END
                     || ': ' || to_char(d.row_count, 'FM999,999,999,990')
                     || CASE WHEN d.row_count = 1 THEN ' row, ' ELSE ' rows, ' END
                     || (SELECT to_char(COALESCE(sum(c.count::bigint), 0), 'FM999,999,999,990')
                                || CASE WHEN sum(c.count::bigint) = 1 THEN ' correction' ELSE ' corrections' END
                           FROM jsonb_each_text(d.corrections) c (class, count))
                     || to_char(d.published_at AT TIME ZONE COALESCE(z.value, 'UTC'),
                                ', "published" YYYY-MM-DD HH24\:MI') END,
           (SELECT to_char(sum(c.count::bigint), 'FM999,999,999,990')
                   || CASE WHEN sum(c.count::bigint) = 1 THEN ' record' ELSE ' records' END || ' arrived since ('
                   || string_agg(c.count || ' ' || c.cause, ', ' ORDER BY c.cause)
                   || '): the day waits for its next rebuild'
              FROM jsonb_each_text(d.dirty) c (cause, count) WHERE c.cause NOT LIKE 'unread %'),
           (SELECT to_char(sum(c.count::bigint), 'FM999,999,999,990')
                   || CASE WHEN sum(c.count::bigint) = 1 THEN ' row' ELSE ' rows' END
                   || ' of the stream that no rebuild can read any more'
              FROM jsonb_each_text(d.dirty) c (cause, count) WHERE c.cause LIKE 'unread %'),
           CASE WHEN d.is_unchecked THEN 'a check for late records is due' END) AS summary
  FROM (SELECT p.day,
               p.status,
               p.generation_id,
               p.row_count,
               p.published_at,
               p.held_reason,
               (SELECT u.made_by FROM publication u
                 WHERE u.day = p.day AND u.action = 'undo' ORDER BY u.id DESC LIMIT 1) AS undone_by,
               g.uncertified_reason,
               p.certified_at,
               COALESCE((SELECT jsonb_object_agg(c.class, c.count ORDER BY c.class)
                           FROM (SELECT each.class, sum(each.count) AS count
                                   FROM (SELECT class, count(*) AS count FROM detail_correction
                                          WHERE generation_id = p.generation_id GROUP BY class
                                          UNION ALL
                                         SELECT key, value::bigint FROM jsonb_each_text(g.unlisted_corrections)) each
                                  GROUP BY each.class) c), '{}') AS corrections,
               COALESCE((SELECT jsonb_object_agg(d.cause, d.count ORDER BY d.cause)
                           FROM dirty_day d WHERE d.day = p.day), '{}') AS dirty,
               g.duplicate_count,
               EXISTS (SELECT FROM unchecked_day u WHERE u.day = p.day) AS is_unchecked
          FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id) d
  LEFT JOIN pipeline_setting z ON z.name = 'timezone';
"""


def upgrade() -> None:
    """Add the column, and replace the views."""
    for statements in (TABLES, STATUS, TRUST):
        op.execute(statements)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
