"""RAP simulated on public records: a prior, a named CSV, an earlier release."""
