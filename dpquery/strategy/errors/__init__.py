"""What a strategy is worth on a workload before any data is seen: expected errors."""
