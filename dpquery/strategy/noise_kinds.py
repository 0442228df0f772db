"""The two kinds of noise a strategy can be made for."""

from typing import Literal, get_args

Noise = Literal["laplace", "gaussian"]
Choice = Literal["auto", "laplace", "gaussian"]
CHOICES: tuple[Choice, ...] = get_args(Choice)


def chosen(choice: Choice) -> Noise | None:
    """Return the noise asked for, or None where the plan may choose."""
    return None if choice == "auto" else choice
