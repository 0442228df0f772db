"""Calibrated noise of a linear strategy: its grid, exact sensitivity and scale, and its cost.

Noise of scale t on a whole number that neighbours move by s costs the Kullback-Leibler divergence
of the two laws, for D_alpha / alpha is largest where alpha tends to 1:

    kappa(s) = x - k (1 - exp(-x)),  x = s / t,  k = 1 / (t sinh(1 / t)) < 1.

Rows have independent noise, so that a vector of moves s_1, s_2, ... costs the sum of their kappa.
kappa(s) = x r(x), where r(x) = 1 - k (1 - exp(-x)) / x is increasing and concave; by Jensen's
inequality moves of L1 norm D1 and squared L2 norm Q therefore cost at most

    sum_k kappa(s_k) <= (D1 / t) r(Q / (D1 t)),

with equality where all rows that move do so by the same, and never above kappa(D1). It grows with
D1 and with Q.

In GDP noise that is epsilon-DP costs at most the squared mu (pi / 2) epsilon^2, and rows add up: Q
as above costs (pi / 2) Q / t^2. The proofs are in docs/MATH.md, section 26.

All of it follows from public inputs: the integer strategy, the privacy unit and the guarantee.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_COUNTED_CELLS
from dpquery.measurement.accounting import Guarantee, noise_scale
from dpquery.measurement.counting.exact_answers import check_width, grid_shift
from dpquery.measurement.noise.exact_noise import LARGEST_SCALE
from dpquery.spec.spec import Privacy, Spec
from dpquery.strategy.sensitivity import block_norms, column_support, sensitivity
from dpquery.strategy.strategy import Noise, RecordChange, Strategy, WeightedBlock, by_form

_DIGITS = 60
_SLACK = Fraction(1, 10**30)
HALF_PI_ABOVE = Fraction("1.5707963267948966192313216916397514420986")
"""A number just above pi / 2."""


@dataclass(frozen=True)
class Moves:
    """Bounds on how far neighbours move some rows, in grid steps."""

    total: int  # bounds the L1 norm
    squared: int  # bounds the square of the L2 norm


def laplace_rho(blocks: Iterable[Moves] | Counter[Moves], *, scale: float) -> Fraction:
    """Return a rho that noise of a scale gives for moves within these bounds, rounded up.

    Args:
        blocks: bounds for each of some sets of rows, which are moved together; or how many sets
            have the same.
        scale: of the noise in grid steps; 1 or more.

    Privacy: of a whole rho-zCDP at every order alpha > 1, and in both directions.

    >>> float(round(laplace_rho([Moves(2**20, 2**40)], scale=2.0**20), 4))  # all on one row
    0.3679
    >>> float(round(laplace_rho([Moves(2**20, 2**30)], scale=2.0**20), 4))  # on 2^10 rows
    0.0005
    """
    each = Counter(blocks).items()
    costs = (times * (_rho(block, Fraction(scale)) + _SLACK) for block, times in each)
    return sum(costs, Fraction(0))


def laplace_squared_mu(squared: int, *, scale: float) -> Fraction:
    """Return a squared mu that noise of a scale gives for moves of a squared L2 norm, rounded up.

    The moves are in grid steps, as the scale is.

    Privacy: of a whole mu-GDP, in both directions.
    """
    return HALF_PI_ABOVE * squared / Fraction(scale) ** 2


def _rho(block: Moves, scale: Fraction) -> Fraction:
    """Return (D1 / t) r(Q / (D1 t)), good to 1e-30.

    With 60 digits an operation errs by less than 1e-59 of its result. Two differences cancel, that
    of sinh(1 / t) and that of 1 - exp(-z), both down to 2^-53 of what is subtracted, as t < 2^52
    and z >= 1 / t: their ratio errs by less than 1e-41. It is at most 1, and D1 / t, which it
    takes part of, is an epsilon: at most 1e6, or a little more.
    """
    with localcontext(prec=_DIGITS):
        t = _decimal(scale)
        one = 1 / t
        k = 2 * one / (one.exp() - (-one).exp())
        z = _decimal(Fraction(block.squared, block.total) / scale)
        share = k * (1 - (-z).exp()) / z
        return Fraction(block.total / t * (1 - share))


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


@dataclass(frozen=True)
class CalibratedNoise:
    """Independent integer noise of one scale on every measured row."""

    guarantee: Guarantee  # the privacy guarantee of all rows together, with what it costs otherwise
    shift: int  # measured answers are integer strategy answers over 2^shift, floored
    sensitivity: int  # exact on that grid and for the declared unit: D1, or D2 squared
    scale: float  # of the noise in grid steps
    # what a record does between neighbours, which the sensitivity is for
    change: RecordChange = "enters"
    step: Fraction = Fraction(1)  # what 1 in the exact tables is worth in answers
    # the noise on the same rows of the sums of squared weights, or of differences of replicate
    # weights, where they are measured too: of one law, and calibrated to all copies together
    beside: "CalibratedNoise | None" = None
    copies: int = 1  # how many sums it is on, one for each replicate

    @property
    def all(self) -> tuple["CalibratedNoise", ...]:
        """It, and that of each copy of what is measured beside."""
        return (self,) if self.beside is None else (self, *[self.beside] * self.beside.copies)

    @property
    def own(self) -> Guarantee:
        """What the rows themselves are private by: the guarantee less what others take of it."""
        return self.guarantee if self.beside is None else part_of(self.guarantee, 1 - OF_SAMPLE)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on a row of the integer strategy, in answers."""
        return self.guarantee.law.std(self.scale) * 2.0**self.shift * float(self.step)


OF_SAMPLE = Fraction(1, 10)
"""The part of a guarantee that is for what tells the error of a sample, beside the weights."""


def part_of(guarantee: Guarantee, share: Fraction) -> Guarantee:
    """Return the guarantee of what takes a share of it: epsilons, rhos and squared mus add up."""
    return replace(guarantee, amount=guarantee.amount * share, rho=None, squared_mu=None)


def share_of_counts(privacy: Privacy) -> Fraction:
    """Return the share of a guarantee that is left to all but the error of a sample."""
    return 1 - OF_SAMPLE if privacy.beside else Fraction(1)


def record_change(spec: Spec) -> RecordChange:
    """Return what a record of the protected unit does between neighbours.

    Privacy:
        A replaced row stays inside the domain where no column drops records: what is not declared
        is then a class of its own. A person may have fewer rows than the one in whose place they
        are, or none, so that rows enter and leave; and so do records whose weight may be 0.
    """
    if spec.privacy.neighbours == "add-remove":
        return "enters"
    columns = (column for attribute in spec.domain.attributes for column in attribute.columns)
    weighted = spec.privacy.weight is not None
    if weighted or spec.privacy.person is not None or any(column.drops for column in columns):
        return "moves"
    return "moves within"


def sound_change(planned: RecordChange, spec: Spec) -> RecordChange:
    """Return what a plan takes a record to do, if the spec's neighbours do no more than that.

    Plans that say nothing take a replacement for a removal and an addition, which is more.

    Raises:
        SpecError: they do.
    """
    if planned not in ("enters", record_change(spec)):
        raise SpecError(
            "the plan's figures are for other neighbours than those of its spec: it was changed "
            "by hand; run `dpquery plan` again"
        )
    return planned


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the noise of a strategy is calibrated to: how far neighbours move its answers.

    All but the scale is the same for every guarantee, and worked out once.
    """

    measurements: tuple[WeightedBlock, ...]  # blocks and their integer weights
    noise: Noise  # the kind of noise on every row
    shift: int  # their answers are measured over 2^shift, floored
    records: int  # single records that change between neighbours
    change: RecordChange  # what each of them does
    steps: int = 1  # the most that one of them adds to its cell
    step: Fraction = Fraction(1)  # what 1 in a cell is worth in answers
    # the same for the sums of squared weights, or differences of replicates, if measured too
    beside: "Calibration | None" = None
    copies: int = 1  # sums over the same cells, in which `steps` bounds the L2 norm of a record

    def noise_for(self, guarantee: Guarantee) -> CalibratedNoise:
        """Return the noise that meets a guarantee, with what it costs in other currencies.

        Privacy: where more is measured beside the weights, both have independent noise that meets
        a part of the guarantee each, and the parts add up to it, as what they cost does.

        Raises:
            SpecError: the noise would be too fine or too coarse for the grid.
        """
        if self.beside is not None:
            alone = replace(self, beside=None).noise_for(part_of(guarantee, 1 - OF_SAMPLE))
            beside = self.beside.noise_for(part_of(guarantee, OF_SAMPLE))
            if guarantee.kind == "pure":
                costs = [(of.rho, of.squared_mu) for of in (alone.guarantee, beside.guarantee)]
                rho, squared_mu = (
                    sum(map(Fraction, each), Fraction(0)) for each in zip(*costs, strict=True)
                )
                guarantee = replace(guarantee, rho=rho, squared_mu=squared_mu)
            return replace(alone, guarantee=guarantee, beside=beside)
        scale = noise_scale(guarantee, self.sensitivity)
        if not 1 <= scale < LARGEST_SCALE:
            # Refused here, from public inputs, and not by the draw, which comes after the charge.
            raise SpecError(
                f"epsilon {float(guarantee.epsilon):g} asks for noise of {scale:.3g} steps of the "
                f"grid, and 1 to {LARGEST_SCALE:.3g} can be drawn; "
                f"ask for a {'smaller' if scale < 1 else 'larger'} epsilon"
            )
        if guarantee.kind == "pure":
            guarantee = replace(
                guarantee,
                rho=min(self.rho(scale), guarantee.amount**2 / 2),
                squared_mu=laplace_squared_mu(self._together.squared, scale=scale),
            )
        exact = (guarantee, self.shift, self.sensitivity, scale)
        return CalibratedNoise(*exact, self.change, self.step, copies=self.copies)

    @cached_property
    def sensitivity(self) -> int:
        """Return how far neighbours move the answers in grid steps: D1, or D2 squared."""
        return self._largest(self.noise)

    def rho(self, scale: float) -> Fraction:
        """Return the rho that Laplace noise of a scale costs, rounded up.

        Privacy: the smaller of two bounds on the costliest column, or difference of two columns:
        the sum over blocks, each at its own largest norms, and all blocks together at theirs.
        """
        together = laplace_rho([self._together], scale=scale)
        return min(laplace_rho(self._apart, scale=scale), together) if self._apart else together

    @cached_property
    def _apart(self) -> Counter[Moves]:
        """How far blocks move, each by itself, and how many so far; rows of zeros never move."""
        forms, moves = by_form(self.measurements), Counter[Moves]()
        first = [alike[0] for alike in forms]
        totals = block_norms(first, "laplace", self.change)
        squares = block_norms(first, "gaussian", self.change)
        for alike, total, squared in zip(forms, totals, squares, strict=True):
            if total:
                moves[self._moves(total, squared, self._support(alike[:1]))] += len(alike)
        return moves

    @cached_property
    def _together(self) -> Moves:
        """How far all blocks move, under Laplace noise."""
        return Moves(self.sensitivity, self._largest("gaussian"))

    def _largest(self, noise: Noise) -> int:
        """Return how far neighbours move all answers together, in the norm of a kind of noise."""
        exact = sensitivity(self.measurements, noise, self.change)
        support = self._support(self.measurements)
        return self._moved(exact, support, laplace=noise == "laplace")

    def _support(self, measurements: Sequence[WeightedBlock]) -> int:
        """Return how many rows a record moves, which counts only where answers are floored."""
        return self.copies * column_support(measurements, self.change) if self.shift else 0

    def _moves(self, total: int, squared: int, support: int) -> Moves:
        return Moves(
            self._moved(total, support, laplace=True), self._moved(squared, support, laplace=False)
        )

    def _moved(self, exact: int, support: int, *, laplace: bool) -> int:
        """Return a norm of what 1 in a cell changes as that of all records on the grid.

        Privacy: several records cost most where they all do the same, since the cost is convex in
        the moves. So is it in the weights before and after, each from 0 to `steps`: a record costs
        most where each of the two is one or the other ([MATH] 11). Copies move together: of a
        record that adds d, L2 norm `steps`, to column c of each it is the norm of c times that of
        d, and the L1 norm of n copies is at most the root of n times the L2 norm.
        """
        exact *= self.steps * (math.isqrt(self.copies - 1) + 1) if laplace else self.steps**2
        moved = _on_grid(exact, support, self.shift, laplace) if self.shift else exact
        return moved * (self.records if laplace else self.records**2)


def calibration(
    strategy: Strategy, *, privacy: Privacy, change: RecordChange | None = None
) -> Calibration:
    """Return what noise for a strategy is calibrated to.

    By default the change is the most that the unit allows.

    Privacy:
        Neighbours differ in at most `max_rows` records of one person, added or removed; or, under
        "replace", in one person's records for other ones. These are `max_rows` moves at most, each
        of a record to another cell, into the domain or out of it ([MATH] 11); with the change
        "enters" they are counted as removals and additions.

    Raises:
        SpecError: the integers of the strategy are too wide for the grid.
    """
    if change is None:
        change = "enters" if privacy.neighbours == "add-remove" else "moves"
    records, measurements = steps(privacy, change), strategy.measurements

    def worked_out() -> Calibration:
        check_width(measurements)
        shift = grid_shift(measurements)
        counts = Calibration(
            measurements, strategy.noise, shift, records, change, privacy.steps, privacy.step
        )
        if privacy.weight is not None and privacy.weight.replicates is not None:
            # Differences have any sign: a record may be replaced by one that adds the opposite to
            # the same cell, which is as far as a removal and an addition go.
            rows = sum(one.block.queries for one in measurements) * privacy.copies
            if rows > MAX_COUNTED_CELLS:
                raise UnsupportedWorkloadError(
                    f"{rows:,} sums would be measured with all replicate weights, and the limit is "
                    f"{MAX_COUNTED_CELLS:,}; ask for fewer tables, or leave `replicates` out"
                )
            differences = replace(
                counts,
                records=steps(privacy, "enters"),
                change="enters",
                steps=privacy.weight.difference_steps,
                copies=len(privacy.beside),
            )
            return replace(counts, beside=differences)
        if not privacy.measures_squares:
            return counts
        # A record adds steps^2 at most, and all together steps times what their weights add up to.
        squares = replace(
            counts,
            shift=shift + privacy.steps.bit_length(),
            steps=privacy.steps**2,
            step=privacy.step**2,
        )
        return replace(counts, beside=squares)

    differences = 0 if privacy.weight is None else privacy.weight.difference_steps
    asked = (records, change, privacy.steps, privacy.step, privacy.beside, differences)
    return strategy.once(asked, worked_out)


def calibrated_noise(
    strategy: Strategy,
    *,
    privacy: Privacy,
    guarantee: Guarantee,
    change: RecordChange | None = None,
) -> CalibratedNoise:
    """Return the noise that meets a guarantee of the strategy's kind; see `calibration`.

    Raises:
        SpecError: the noise would be too fine or too coarse for the grid, or the integers of the
            strategy too wide for it.
    """
    return calibration(strategy, privacy=privacy, change=change).noise_for(guarantee)


def steps(privacy: Privacy, change: RecordChange) -> int:
    """Return how many single records change between neighbours, each as `change` says."""
    replaced = privacy.neighbours == "replace"
    if change != "enters" and not replaced:
        raise ValueError("records that are added or removed enter or leave the domain")
    return privacy.max_rows * (2 if replaced and change == "enters" else 1)


def largest_move(privacy: Privacy, change: RecordChange) -> float:
    """Return how far neighbours move a count of sensitivity one, in answers."""
    return steps(privacy, change) * float(privacy.steps * privacy.step)


def _on_grid(exact: int, support: int, shift: int, laplace: bool) -> int:
    """Return the sensitivity after flooring to 2^shift.

    A row whose answer moves by a moves by at most |a| / 2^shift + 1 on the grid, and only the
    `support` rows with a nonzero entry move: D1 grows by their number, D2 by its root (Minkowski).
    """
    if laplace:
        return -(-exact >> shift) + support
    length = math.isqrt(exact - 1) + 1
    return (-(-length >> shift) + math.isqrt(support) + 1) ** 2
