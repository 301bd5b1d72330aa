"""The artifact mirror: serves the publishers' URLs from a directory, with faults that fault rules inject.

    python -m aks_flex_lab.mirror --root TREE --listen ADDR:443 --cert FILE --key FILE --control SOCKET

`https://<host>/<path…>` returns the file `TREE/<host>/<path…>`. `server` handles connections, `served_files` finds
the file, `responses` computes headers and sends the body, `fault_rules` decides which fault applies, and `control` is
the UNIX socket that adds and removes fault rules.
"""
