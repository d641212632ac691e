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
