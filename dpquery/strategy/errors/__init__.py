"""What a strategy is worth before any data is seen: variances of queries, expected errors."""
