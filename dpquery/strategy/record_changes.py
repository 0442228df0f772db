"""How one record of a data set may differ between neighbours."""

from typing import Literal, get_args

RecordChange = Literal["enters", "moves", "moves within"]
"""A record enters or leaves the domain; it moves to another cell, or enters or leaves; or it moves
to another cell and is always inside."""
CHANGES: tuple[RecordChange, ...] = get_args(RecordChange)
