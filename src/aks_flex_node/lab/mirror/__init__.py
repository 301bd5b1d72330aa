"""The artifact mirror: the publishers' own URLs, served from a directory, with faults on request.

    python -m aks_flex_node.lab.mirror --root TREE --listen ADDR:443 --cert FILE --key FILE --control SOCKET

`TREE/<host>/<path…>` is what `https://<host>/<path…>` answers. A request passes through the modules in this order:
`server` (sockets, TLS), `exchange` (one connection), `trees` (which file), `answers` (status, headers, range),
`switchboard` (which fault applies), `delivery` (the bytes). `control` and `client` are the two ends of the UNIX
socket by which faults are switched on and off; the network has no way to it.
"""
