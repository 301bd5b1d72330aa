"""The programs of the azcmagent stand-in as they run on machines, with the standard library only."""
