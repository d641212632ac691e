INSERT INTO unchecked_day (day) VALUES (%(day)s) ON CONFLICT (day) DO UPDATE SET request = DEFAULT, has_moved = true
