"""The daemon: polls the provider, watches the machine, schedules jobs and reports status.

It does not change the machine itself.
"""
