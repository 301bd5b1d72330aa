"""The lab's Azure Resource Manager: a little of Azure's own, and the flexNodeConfig API by way of its provider."""
