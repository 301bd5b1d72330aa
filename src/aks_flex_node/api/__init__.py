"""The contract between the agent and the resource provider, and validation rules that both apply."""
