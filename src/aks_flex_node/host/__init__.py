"""Access to the machine: queries, actions, and the hosts that execute them."""
