"""Resource provider: serves flexNodeConfig as an ARM resource, issues config URLs and single-use bootstrap tokens."""

DEFAULT_CONFIG_FILE = "/etc/aks-flex-rp/config.yaml"  # here, because commands show it without importing the settings
