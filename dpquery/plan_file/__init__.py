"""The plan as a file: written, read back with its spec, and strategies as JSON."""
