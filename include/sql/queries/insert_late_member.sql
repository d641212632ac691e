INSERT INTO late_member (topic_id, partition, "offset", member_id, version_at) VALUES %s ON CONFLICT DO NOTHING
