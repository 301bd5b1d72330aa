"""The artifact mirror: serves the publishers' URLs from a directory, with faults on request.

    python -m aks_flex_lab.mirror --root TREE --listen ADDR:443 --cert FILE --key FILE --control SOCKET

`TREE/<host>/<path…>` is what `https://<host>/<path…>` answers. `server` handles connections, `served_files` finds the
file, `responses` computes headers and sends the body, `fault_rules` decides which fault applies, and `control` is the
UNIX socket by which faults are added and removed.
"""
