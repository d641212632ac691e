"""A range of days reads each day's shown generation, once, whatever the bounds are."""

from alembic import op

revision = "0023"
down_revision = "0022"

# PostgreSQL chooses a generation while the query runs, in an Append. Where planning leaves one table of a range, it
# drops the Append, and that table was read once for each published day: the empty table is always beside it.
EMPTY = """
CREATE TABLE board_detail_empty (LIKE board_detail_final);
COMMENT ON TABLE board_detail_empty IS
    'Always empty. Beside it in the view, a day''s generation is chosen while the query runs, also where planning'
    ' leaves one.';
"""

# After a bound without equality (day < …) PostgreSQL compares no further column of the partition key, so the other
# generations of a day were read as well. It looks into an OR by itself; the second half is never true.
VIEW = """
CREATE OR REPLACE VIEW board_detail AS
SELECT x.board_id, x.member_id, x.nickname, x.city, x.phone, x.title, x.body, x.modified_at, x.created_at, x.event_id,
       x.board_partition, x.board_offset, x.member_partition, x.member_offset, x.kafka_partition, x.kafka_offset,
       x.day, x.finality, x.shown_since
  FROM day_publication p
 CROSS JOIN LATERAL (
       SELECT f.board_id, f.member_id, f.nickname, f.city, f.phone, f.title, f.body, f.modified_at,
              f.created_at, f.event_id, f.board_partition, f.board_offset, f.member_partition,
              f.member_offset, f.kafka_partition, f.kafka_offset, f.day, 'final'::text AS finality,
              p.moved_at AS shown_since
         FROM (SELECT generation_id, day, board_id, member_id, nickname, city, phone, title, body, modified_at,
                      created_at, event_id, board_partition, board_offset, member_partition, member_offset,
                      kafka_partition, kafka_offset
                 FROM board_detail_final
               UNION ALL
               SELECT generation_id, day, board_id, member_id, nickname, city, phone, title, body, modified_at,
                      created_at, event_id, board_partition, board_offset, member_partition, member_offset,
                      kafka_partition, kafka_offset
                 FROM board_detail_empty) f
        WHERE ((f.day = p.day AND f.generation_id = p.generation_id) OR f.generation_id IS NULL)
          AND NOT EXISTS (SELECT 1 FROM board_detail_live l
                           WHERE l.day = p.day AND l.board_id = f.board_id
                             AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.board_id,
                                                l.board_partition, l.board_offset, l.member_partition,
                                                l.member_offset))
       UNION ALL
       SELECT l.board_id, l.member_id, l.nickname, l.city, l.phone, l.title, l.body, l.modified_at,
              l.created_at, l.event_id, l.board_partition, l.board_offset, l.member_partition,
              l.member_offset, l.kafka_partition, l.kafka_offset, l.day, 'live'::text AS finality,
              GREATEST(l.written_at, p.moved_at) AS shown_since
         FROM board_detail_live l
        WHERE l.day = p.day AND NOT l.deleted
          AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.board_id, l.board_partition,
                             l.board_offset, l.member_partition, l.member_offset)) x
 WHERE x.day = p.day;
"""


def upgrade() -> None:
    """Make the table and replace the view; its columns, comments and grants stay."""
    for block in (EMPTY, VIEW):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
