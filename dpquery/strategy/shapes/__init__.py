"""The shapes of a strategy, one file each; their sensitivity, size and what they can answer."""
