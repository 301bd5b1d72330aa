"""How soon thousands of held polls of the resource provider hear of a change."""
