"""Web pages: fleet, node, node creation, audit. Rendered on the server; scripts only refresh them."""
