"""What the agent and the resource provider both know: the wire between them, and Kubernetes' own rules."""
