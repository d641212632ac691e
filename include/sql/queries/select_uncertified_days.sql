-- Published, without a certificate, and nothing reached them since.
SELECT p.day
  FROM day_publication p
 WHERE p.status = 'rebuilt' AND p.generation_id IS NOT NULL AND p.held_reason IS NULL
   AND NOT EXISTS (SELECT FROM dirty_day d WHERE d.day = p.day)
 ORDER BY p.day DESC
