"""Deployments of templates in the lab's ARM: read, evaluated, carried out with the caller's own token."""
