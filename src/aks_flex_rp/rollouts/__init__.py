"""Roll-outs: bring the nodes of a pool from one revision to another in waves."""
