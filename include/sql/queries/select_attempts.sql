SELECT day, runs FROM day_attempt WHERE runs >= %(runs)s
