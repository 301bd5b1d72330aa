"""The lab's Azure Resource Manager: built-in resource types, and the flexNodeConfig API through its provider."""
