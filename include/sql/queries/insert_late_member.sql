INSERT INTO late_member (member_id, partition, "offset", version_at) VALUES %s
