-- The record goes, the reason and the coordinates stay. A broken value is no JSON: it is searched as text.
UPDATE reject SET key = NULL, value = NULL
 WHERE (key IS NOT NULL OR value IS NOT NULL)
   AND ((split_part(topic, '@', 1) = %(member_topic)s
         AND (encode(key, 'escape') = %(member_id)s::text
              OR encode(value, 'escape') ~ ('"id"\s*:\s*"?' || %(member_id)s || '([^0-9]|$)')))
        OR (split_part(topic, '@', 1) <> %(member_topic)s
            AND (encode(key, 'escape') = ANY (%(board_ids)s::text[])
                 OR encode(value, 'escape') ~ ('"memberId"\s*:\s*"?' || %(member_id)s || '([^0-9]|$)'))))
