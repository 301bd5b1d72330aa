"""What can be done with a flex node: made, changed, read, reported on, joined, removed. Everything the API offers."""
