"""The container images that the lab makes itself, and the registry that serves them.

No public registry can be reached from a lab. `layers` packs files, `images` makes an OCI image of them, `contents`
says which images the lab has, `registry` how Debian's docker-registry is run, and `pushes` brings the images there.
"""
