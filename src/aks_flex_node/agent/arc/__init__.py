"""Azure Arc: this machine as a resource of Azure, with an identity of its own."""
