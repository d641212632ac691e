SELECT day, held_reason FROM day_publication WHERE held_reason IS NOT NULL
