"""RAP under audit: runs on made-up cases against the distribution they must have."""
