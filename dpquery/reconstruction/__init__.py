"""From noisy measurements to answers, each with its error; post-processing only."""
