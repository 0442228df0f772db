"""The audit of adaptive measurement: runs on made-up towns against their law, worked out apart."""
