"""Lower bounds on the loss of every strategy, and the root traces that they take."""
