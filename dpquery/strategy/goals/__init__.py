"""Goals beside the weighted RMSE: targets, minimax, and weights of single queries."""
