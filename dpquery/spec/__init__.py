"""What the operator declares: YAML text to a checked Spec, and nothing that needs the data."""
