"""Implicit query matrices: factors, blocks, workloads and their Grams; no privacy, no data."""
