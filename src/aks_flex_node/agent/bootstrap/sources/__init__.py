"""Join sources: where the configuration of a join comes from. One class in one file for each."""
