"""Mistakes that must be noticed: each a changed line of the product, and what notices it.

A mutant names the function that it changes, and no file: files may move. A row that no longer fits
the code is mended or replaced, never dropped: the mistake can still be made. Who adds a protection
adds its rows.
"""

from mutants.accounting import ACCOUNTING
from mutants.adaptive import ADAPTIVE
from mutants.block_cores import BLOCK_CORES
from mutants.block_p_identity import BLOCK_P_IDENTITY
from mutants.budgets import BUDGETS
from mutants.cell_classes import CELL_CLASSES
from mutants.check import CHECK
from mutants.columns import COLUMNS
from mutants.counted import COUNTED
from mutants.currencies import CURRENCIES
from mutants.derived import DERIVED
from mutants.input import INPUT
from mutants.ledger import LEDGER
from mutants.ledger_storage import LEDGER_STORAGE
from mutants.levels import LEVELS
from mutants.measurement_key import MEASUREMENT_KEY
from mutants.noise import NOISE
from mutants.orbits import ORBITS
from mutants.output import OUTPUT
from mutants.outsiders import OUTSIDERS
from mutants.package import PACKAGE
from mutants.parts import PARTS
from mutants.persons import PERSONS
from mutants.public_facts import PUBLIC_FACTS
from mutants.rap import RAP
from mutants.replacement import REPLACEMENT
from mutants.solved import SOLVED
from mutants.sources import SOURCES
from mutants.sums import SUMS
from mutants.supply import SUPPLY
from mutants.trees import TREES
from mutants.values import VALUES

MUTANTS = (
    *NOISE,
    *ACCOUNTING,
    *CURRENCIES,
    *INPUT,
    *VALUES,
    *OUTSIDERS,
    *COLUMNS,
    *COUNTED,
    *PERSONS,
    *SOURCES,
    *CHECK,
    *LEDGER,
    *LEDGER_STORAGE,
    *BUDGETS,
    *MEASUREMENT_KEY,
    *RAP,
    *ADAPTIVE,
    *REPLACEMENT,
    *CELL_CLASSES,
    *BLOCK_CORES,
    *BLOCK_P_IDENTITY,
    *PARTS,
    *TREES,
    *ORBITS,
    *OUTPUT,
    *PACKAGE,
    *SOLVED,
    *SUMS,
    *LEVELS,
    *DERIVED,
    *PUBLIC_FACTS,
    *SUPPLY,
)

CHEAPEST = (
    "true answers are returned",
    "the bulk sampler's scale is 2 % too small",
    "a charge is rounded down",
    "the first measurement is free",
    "the chain is not verified",
    "a person's id is compared letter by letter where it is a number",
)
"""Names of those that are planted every day."""
