"""The lab's Azure Resource Manager: built-in resource types, and a proxy to the flex node resource provider."""
