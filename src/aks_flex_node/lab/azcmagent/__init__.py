"""A stand-in for Azure's Connected Machine agent: a real package with real services, in a signed repository.

`inside` is what runs on machines; `packages` makes the package of it, `repositories` the repository that the lab's
mirror serves where Microsoft's own would be.
"""
