"""Which noisy measurements answer a workload best, chosen and proven without any data."""
