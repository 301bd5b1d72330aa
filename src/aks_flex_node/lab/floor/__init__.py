"""The floor: the least that any program must do to make a machine a node, done by hand.

It is what our join is measured against, and how the lab itself gets a node where a test needs one. It checks
nothing, keeps nothing and cannot be run twice: it is a measure, not an example to follow.
"""
