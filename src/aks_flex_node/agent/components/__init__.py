"""The parts that make a machine a node, in the order in which they come."""
