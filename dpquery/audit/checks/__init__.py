"""The checks: noise by itself, repeated measurements, whole releases, neighbours, libraries."""
