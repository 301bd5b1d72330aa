"""Files, environment and flags become one frozen NodeConfig, or all of their problems at once."""
