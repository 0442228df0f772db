"""Mistakes that must be noticed: each a changed line of the product, and what notices it.

A mutant names the function that it changes, and no file: files may move. A row that no longer fits
the code is mended or replaced, never dropped: the mistake can still be made. Who adds a protection
adds its rows.
"""

from mutants.drawn import DRAWN
from mutants.kept import KEPT
from mutants.keyed import KEYED
from mutants.ledgered import LEDGERED
from mutants.priced import PRICED
from mutants.rapped import RAPPED
from mutants.read import READ
from mutants.shown import SHOWN
from mutants.solved import SOLVED
from mutants.supplied import SUPPLIED

MUTANTS = (*DRAWN, *PRICED, *READ, *LEDGERED, *KEPT, *KEYED, *RAPPED, *SHOWN, *SOLVED, *SUPPLIED)

CHEAPEST = (
    "true answers are returned",
    "the bulk sampler's scale is 2 % too small",
    "a charge in epsilon is rounded down",
    "the first measurement is free",
    "the chain is not verified",
    "a person's id is not stripped of spaces",
)
"""Names of those that are planted every day."""
