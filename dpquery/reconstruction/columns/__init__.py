"""Post-processed columns beside the unbiased estimates, never in their place."""
