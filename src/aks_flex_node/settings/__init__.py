"""The table of settings: what each is, who may set it, what it reaches. Agent and resource provider read it."""
