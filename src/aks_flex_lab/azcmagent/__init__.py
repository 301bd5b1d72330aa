"""A stand-in for the Azure Connected Machine agent: a Debian package with services, in a signed APT repository.

`azcm` runs on machines; `debian_package` builds the package, `apt_repository` the repository that the mirror serves.
"""
