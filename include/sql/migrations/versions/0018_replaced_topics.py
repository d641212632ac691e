"""Coordinates in a topic that was deleted and made again name no record of the one that is there."""

from alembic import op

revision = "0018"
down_revision = "0017"

# Few places compare a row with a generation, and this is what they compare by, after the version.
OFFSETS = """
CREATE FUNCTION ordered_offset(board_offset bigint, board_ends bigint[]) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN board_ends IS NULL THEN board_offset - 100000000000000000 ELSE board_offset END;
COMMENT ON FUNCTION ordered_offset IS
    'The offset of a board record, which orders its versions: negative for a record of a topic that was replaced, so'
    ' that every record of the topic made since is newer. A generation without board_ends is of such a topic.';
COMMENT ON COLUMN board_detail_live.board_partition IS
    'Partition of the board record this row was made from; -1 less the partition if its topic was replaced since.';
COMMENT ON COLUMN board_detail_live.board_offset IS
    'Offset of the board record this row was made from; less 10^17 if its topic was replaced since.';
COMMENT ON COLUMN offset_ledger.consumer IS
    'join, serve, archive or late_member; or replaced: before next_offset board-detail was made from a topic board that'
    ' was replaced since.';
"""


def upgrade() -> None:
    """Make the function, and say what such coordinates mean."""
    op.get_bind().exec_driver_sql(OFFSETS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
