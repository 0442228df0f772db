"""The audit of RAP: runs on made-up cases against the distribution they must have."""
