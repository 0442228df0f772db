"""The two kinds of noise a strategy can be made for."""

from typing import Literal

Noise = Literal["laplace", "gaussian"]
