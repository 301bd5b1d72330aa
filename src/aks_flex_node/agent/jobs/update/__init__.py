"""The update job: a node applies its next configuration, checks that it works, and rolls back when it does not."""
