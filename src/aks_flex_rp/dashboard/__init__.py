"""Web dashboard: fleet, node, node creation, audit and help pages. Rendered on the server, refreshed by a script."""
