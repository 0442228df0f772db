"""What plan makes of a selection: figures in counts, targets, and RAP rehearsed beside it."""
