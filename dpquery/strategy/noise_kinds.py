"""The two kinds of noise a strategy can be made for."""

from typing import Literal, get_args

Noise = Literal["laplace", "gaussian"]
NoiseChoice = Literal["auto", "laplace", "gaussian"]
Law = Literal["laplace", "gaussian", "rounded"]
"""What is drawn: discrete Laplace or Gaussian noise, or continuous Gaussian noise, rounded."""

CHOICES: tuple[NoiseChoice, ...] = get_args(NoiseChoice)


def chosen(choice: NoiseChoice) -> Noise | None:
    """Return the noise asked for, or None where the plan may choose."""
    return None if choice == "auto" else choice
