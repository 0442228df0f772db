"""How a release is made from a plan: by a linear strategy and least squares, or by RAP."""
