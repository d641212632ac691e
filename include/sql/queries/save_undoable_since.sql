-- Live rows covered before then are gone, so what the day showed before then cannot be shown again.
UPDATE day_publication SET undoable_since = now() - make_interval(days => %(undo_days)s) WHERE day = %(day)s
