"""The agent that stays: it follows the configuration in Azure, watches the machine, and lets others do the work."""
