"""The flexNodeConfig resource: models, validation, generated configuration. Pure functions without I/O."""
