"""What a privacy review must read: from the CSV's lines to noisy counts, and what they cost."""
