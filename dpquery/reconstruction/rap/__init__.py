"""RAP's public side: relaxed rows, fitted to noisy answers."""
