"""What the benches of the resource provider share: a cheap client, the service as a process, nodes in bulk."""
