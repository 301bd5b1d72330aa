"""The contract between the agent and the resource provider, and the validation rules that both apply."""
