"""The cloud side of a lab: long-running programs, each in the cloud's namespace and a control group of its own."""
