"""The resource provider: flexNodeConfig as a real ARM resource, config URLs and single-use tokens."""
