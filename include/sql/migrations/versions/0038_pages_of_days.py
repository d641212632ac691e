"""View day_correction, and the rights of role integrity for the page of a day."""

from alembic import op

revision = "0038"
down_revision = "0037"

# the name of the key's column differs between pipelines
VIEW = r"""
DO $$
BEGIN
    EXECUTE format($view$
CREATE VIEW day_correction AS
SELECT c.generation_id,
       c.day,
       c.%I AS key,
       c.class,
       (SELECT jsonb_object_agg(v.name, CASE WHEN v.name = ANY (d.personal) AND v.value <> 'null'
                                             THEN '"(hidden)"' ELSE v.value END)
          FROM jsonb_each(c.shown) v (name, value)) AS shown,
       (SELECT jsonb_object_agg(v.name, CASE WHEN v.name = ANY (d.personal) AND v.value <> 'null'
                                             THEN '"(hidden)"' ELSE v.value END)
          FROM jsonb_each(c.rebuilt) v (name, value)) AS rebuilt,
       ARRAY(SELECT v.name FROM jsonb_each(c.shown) v (name, value)
              WHERE c.rebuilt ? v.name AND c.rebuilt -> v.name <> v.value) AS changed
  FROM detail_correction c
 CROSS JOIN (SELECT ARRAY(SELECT o.described ->> 'name'
                            FROM jsonb_array_elements(s.value::jsonb #> '{output,columns}') o (described)
                           WHERE (o.described ->> 'personal')::boolean) AS personal
               FROM pipeline_setting s WHERE s.name = 'definition') d
$view$, (SELECT attname FROM pg_attribute WHERE attrelid = 'detail_correction'::regclass AND attnum = 3));
END
$$;
COMMENT ON VIEW day_correction IS
    'Corrections of each generation, before and after, with personal values hidden; empty without a kept definition.';
COMMENT ON COLUMN day_correction.key IS 'The key of the row.';
COMMENT ON COLUMN day_correction.shown IS 'The row that was shown; null if there was none.';
COMMENT ON COLUMN day_correction.rebuilt IS 'The row of the generation; null if it has none.';
COMMENT ON COLUMN day_correction.changed IS 'Columns that differ, personal ones too.';
GRANT SELECT ON day_correction, day_certificate, publication TO integrity;
GRANT SELECT (generation_id, kind, reason) ON generation_excluded TO integrity;
GRANT SELECT (id, day, run_id, reason, status, raw_distinct, row_count, pending_count, rejected_count, duplicate_count,
              content_hash, created_at, built_at, published_at, identical_to, uncertified_reason)
   ON generation TO integrity;
"""


def upgrade() -> None:
    """Make the view, and grant the rights."""
    op.execute(VIEW)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
