"""The candidates and the baselines that plan compares, and the choice of the best."""
