SELECT {{key}} FROM stage_detail WHERE deleted AND day IS NULL ORDER BY {{key}}
