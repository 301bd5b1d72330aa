"""What jobs leave on disk for the daemon, `status` and the next job: their results, and the journal of an update."""
