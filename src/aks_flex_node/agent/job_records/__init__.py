"""Files that jobs write for the daemon, `status` and the next job: results and the update journal."""
