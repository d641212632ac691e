-- Rows made from a topic that was replaced by another of its name.

-- name: mark_covered_of_replaced
-- No cut covers these rows from now on, and a record of the topic that is there now is newer in the same version.
UPDATE detail_covered
   SET stream_partition = -1 - stream_partition, stream_offset = ordered_offset(stream_offset, NULL)
 WHERE day IS NOT DISTINCT FROM %(day)s AND stream_partition >= 0

-- name: mark_live_of_replaced
-- No cut covers these rows from now on, and a record of the topic that is there now is newer in the same version.
UPDATE detail_live
   SET stream_partition = -1 - stream_partition, stream_offset = ordered_offset(stream_offset, NULL)
 WHERE day IS NOT DISTINCT FROM %(day)s AND stream_partition >= 0

-- name: take_topic_out_of_cuts
-- Offsets of a topic that is gone cover nothing: they are kept under another name, and the cut's columns are null.
WITH replaced AS (
    UPDATE generation
       SET cut = ((cut - %(topic)s) #- ARRAY['unread', %(topic)s]) || jsonb_build_object(
               'replaced', COALESCE(cut -> 'replaced', '{}') || jsonb_build_object(%(topic)s::text, cut -> %(topic)s))
     WHERE day = %(day)s AND cut ? %(topic)s
       AND cut -> 'topic_ids' ->> %(topic)s IS DISTINCT FROM %(topic_id)s AND status <> 'discarded'
    RETURNING id, cut
)
UPDATE day_publication p SET cut = r.cut FROM replaced r WHERE p.day = %(day)s AND p.generation_id = r.id

-- name: select_days_of_replaced
-- Days with a generation that was built from another topic of that name, and still has it in its cut.
SELECT DISTINCT day
  FROM generation
 WHERE cut ? %(topic)s AND cut -> 'topic_ids' ->> %(topic)s IS DISTINCT FROM %(topic_id)s AND status <> 'discarded'
 ORDER BY day

-- name: select_days_with_rows
-- Days with rows of the speed layer that do not say yet that their topic was replaced.
SELECT day FROM detail_live WHERE stream_partition >= 0 AND day IS NOT NULL
 UNION
SELECT day FROM detail_covered WHERE stream_partition >= 0

-- name: select_days_of_other_topic
-- Days with a generation whose cut names another topic of that name. One without ids names none.
SELECT DISTINCT day
  FROM generation
 WHERE cut ? %(topic)s AND cut -> 'topic_ids' ->> %(topic)s <> %(topic_id)s AND status <> 'discarded'
 ORDER BY day
