"""Statistics derived from noisy answers, with intervals from their joint covariance."""
