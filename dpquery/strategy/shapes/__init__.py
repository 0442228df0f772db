"""The shapes of a strategy, one file each, with all that a strategy of the shape can do."""
