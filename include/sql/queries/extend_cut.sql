-- What the day shows is all that raw has up to the later cut, too.
WITH later AS (
    SELECT cut FROM generation WHERE id = %(generation_id)s
), shown AS (
    UPDATE generation g SET cut = later.cut FROM later WHERE g.id = %(shown_id)s
)
UPDATE day_publication p SET cut = later.cut FROM later WHERE p.day = %(day)s
