"""Mathematics that strategies share: subsets, marginals, side-by-side products."""
