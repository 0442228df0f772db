"""What the best strategy is the best at: an objective, or figures to keep below targets."""

from typing import Literal

Objective = Literal["rmse", "max"]
"""What is minimised: the weighted RMSE, or the largest standard error."""
Figure = Literal["sd", "rmse"]
"""What a target is about: the largest standard error of some queries, or their RMSE."""
