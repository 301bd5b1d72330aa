"""Measures how soon thousands of long polls of the resource provider receive a change."""
