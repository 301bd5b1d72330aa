"""The daemon: polls the provider, watches the machine, schedules jobs and reports status.

It changes nothing itself.
"""
