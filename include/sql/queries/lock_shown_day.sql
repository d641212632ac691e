-- Waits for a batch of the speed layer that is about to write into the day, and holds the next one up.
SELECT generation_id, held_reason, undoable_since FROM day_publication WHERE day = %(day)s FOR UPDATE
