"""From YAML text to a Spec, with every mistake at its place."""
