"""The programs of the stand-in, as they run on machines: with nothing but Python's standard library."""
