"""The bulk sampler: its law is exact, whichever of its paths decides.

Nothing here fixes a seed of the product, which has none: where bytes are scripted, the test passes
its own source of them. Every statistical claim is tested at 1e-9 and there are fewer than 300, so
that all of them together fail a sound sampler less often than once in a million runs.
"""

import hashlib
import inspect
import math
import os
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
from dense import cdf, cells, chi_square, counts, p_of_counts
from scipy.stats import binom, norm

from dpquery.measurement.noise import bulk_noise
from dpquery.measurement.noise.bulk_noise import BlockLaw, BulkSampler, SlowSampler, _Proposals
from dpquery.measurement.noise.laws import LAWS

NOISES = ("laplace", "gaussian", "rounded")
DISCRETE = ("laplace", "gaussian")
SCALES = (
    *(1.0, 1.5, 2.0, 2.7, 10.0, 31.999, 63.5, 64.0, 100.1, 1000.3, 999_983.0),
    *(2**20 + 0.1, 2.0**33, 1.1 * 2.0**33, 2.0**40, 1.9 * 2.0**46, 2.0**52 * (1 - 2.0**-53)),
)
STRICT = 1e-9


def stream(label):
    """Bytes that can be drawn again, and how many were drawn."""
    state = {"at": 0}

    def entropy(size):
        state["at"] += 1
        return hashlib.shake_128(f"{label} {state['at']}".encode()).digest(size)

    return entropy


class Script:
    """Gives the bytes that it was told, a call each, and then the operating system's."""

    def __init__(self, *chunks):
        self.left = list(chunks)

    def __call__(self, size):
        chunk = self.left.pop(0) if self.left else os.urandom(size)
        assert len(chunk) == size
        return chunk

    def tell(self, *words):
        self.left = [word.to_bytes(8, "little") for word in words]


def exp_bounds(x, bits=320):
    """Fractions on either side of exp(-x), by Taylor's series of exp(x / 2^n) in integers."""
    halvings, one = math.ceil(x).bit_length() + 1, 1 << bits
    below, above = (math.floor(x * one) >> halvings), (math.floor(x * one) >> halvings) + 1
    low, high, term_low, term_high = 0, 0, one, one
    for n in range(1, bits):
        low, high = low + term_low, high + term_high
        term_low, term_high = term_low * below // (n * one), term_high * above // (n * one) + 1
    high += 2 * term_high  # the rest is less than its first term twice
    for _ in range(halvings):
        low, high = low * low // one, high * high // one + 1
    return Fraction(one, high), Fraction(one, low)


@cache
def cumulative(law):
    """Bounds on the cumulative weights of step 1, from the docstring of the module."""
    weights = [(Fraction(1), Fraction(1))] * law.first
    for h in range(law.blocks):
        weights.append([2 * 2**law.bits * w for w in exp_bounds(law.exponent(law.start(h)))])
    start = law.start(law.blocks)
    slope = law.rate if law.power == 1 else 2 * law.rate * start
    (low, high), (q_low, q_high) = exp_bounds(law.exponent(start)), exp_bounds(slope)
    weights.append((2 * low / (1 - q_low), 2 * high / (1 - q_high)))
    grid = 1 << 300  # common denominators keep the sums short
    lows = [*accumulate(math.floor(low * grid) for low, _ in weights)]
    return lows, [*accumulate(math.ceil(high * grid) for _, high in weights)]


def twin_thresholds(law, bits):
    """Floors that both bounds agree on."""
    lows, highs = cumulative(law)
    floors = [(floor << bits) // highs[-1] for floor in lows[:-1]]
    assert floors == [(high << bits) // lows[-1] for high in highs[:-1]]
    return floors


@pytest.fixture(autouse=True)
def counted(monkeypatch, record_property):
    """Count the draws."""
    real, sizes, within = BulkSampler.sample, [], []

    def sample(self, size):
        within.append(size)
        drawn = real(self, size)
        within.pop()
        if not within:  # what was refused is drawn again by the sampler itself
            sizes.append(size)
        return drawn

    monkeypatch.setattr(BulkSampler, "sample", sample)
    yield
    record_property("draws", sum(sizes))


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("noise", NOISES)
def test_draws_follow_the_law_and_none_two_per_cent_wider_or_narrower(noise, scale):
    edges = cells(scale)
    seen = counts(edges, BulkSampler(LAWS[noise], scale).sample(1_000_000))
    assert p_of_counts(noise, scale, edges, seen) > STRICT
    for factor in (1 / 1.02, 1.02):
        assert p_of_counts(noise, scale * factor, edges, seen) < STRICT


@pytest.mark.statistical
@pytest.mark.parametrize("scale", [1.0, 2.7, 10.0])
@pytest.mark.parametrize("noise", NOISES)
def test_every_single_value_has_its_mass(noise, scale):
    edges = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale))
    seen = counts(edges, BulkSampler(LAWS[noise], scale).sample(1_000_000))
    assert p_of_counts(noise, scale, edges, seen) > STRICT


@pytest.mark.nightly(daily="260.7")
@pytest.mark.statistical
@pytest.mark.parametrize("scale", [260.7, 1.03 * 2.0**33])
@pytest.mark.parametrize("noise", NOISES)
def test_within_a_block_the_law_falls_as_it_should(noise, scale):
    """Blocks are a 33rd of the scale wide: without step 2 each would be flat, and this fails."""
    sampler = BulkSampler(LAWS[noise], scale)
    law, size = sampler.law, 1 << sampler.law.bits >> sampler.law.halvings
    sample = sampler.sample(2_000_000)
    starts = 1 + size * np.arange(law.blocks)[:, None] + size // 4 * np.arange(5)
    mass = np.diff(cdf(noise, scale, starts - 1.0), axis=1).sum(axis=0)
    offsets = np.abs(sample) - 1
    inside = (offsets >= 0) & (offsets < law.blocks * size)
    seen = np.bincount(offsets[inside] % size // (size // 4), minlength=4)
    assert chi_square(seen, mass / mass.sum() * seen.sum()) > STRICT
    assert chi_square(seen, np.full(4, seen.sum() / 4)) < 1e-4  # of sound ones all but one in 10^7


@pytest.mark.nightly(daily="1048576.1")
@pytest.mark.statistical
@pytest.mark.parametrize("scale", [2**20 + 0.1, 1.1 * 2.0**33, 1.9 * 2.0**46])
@pytest.mark.parametrize("noise", NOISES)
def test_the_low_bits_are_fair_and_so_is_the_sign(noise, scale):
    """At these scales the remainders by small numbers are even to within 1e-9 of their mass."""
    sample = BulkSampler(LAWS[noise], scale).sample(400_000)
    for modulus in (7, 64, 1000):
        seen = np.bincount(sample % modulus, minlength=modulus)
        assert chi_square(seen, np.full(modulus, sample.size / modulus)) > STRICT
    positive = np.count_nonzero(sample > 0)
    assert 2 * binom.cdf(min(positive, sample.size - positive), sample.size, 0.5) > STRICT


@pytest.mark.nightly(daily=r"-(7|8|31)\]")
@pytest.mark.statistical
@pytest.mark.parametrize("bits", [7, 8, 9, 15, 16, 31, 32])
@pytest.mark.parametrize("noise", NOISES)
def test_the_sign_is_fair_where_the_place_takes_all_bits_of_a_word_but_one_or_none(noise, bits):
    sampler = BulkSampler(LAWS[noise], 1.5 * 2.0 ** (bits + 5 - (noise == "rounded")))
    assert sampler.law.bits == bits
    positive = np.count_nonzero(sampler.sample(20_000) > 0)
    assert 2 * binom.cdf(min(positive, 20_000 - positive), 20_000, 0.5) > STRICT


@pytest.mark.nightly(daily="1000.3")
@pytest.mark.statistical
@pytest.mark.parametrize("scale", [1.0, 1000.3, 2.0**33])
@pytest.mark.parametrize("noise", NOISES)
def test_neighbours_in_a_sample_are_independent(noise, scale):
    sample = BulkSampler(LAWS[noise], scale).sample(500_000)
    for values in (sample / scale, np.abs(sample) / scale, sample % 2.0):
        centred = values - values.mean()
        for lag in (1, 2, 32, 1 << 15):
            product = centred[lag:] * centred[:-lag]
            z = product.sum() / (centred.var() * math.sqrt(product.size))
            assert 2 * norm.sf(abs(z)) > STRICT


def test_two_samplers_share_nothing_and_no_draw_is_repeated():
    samples = [BulkSampler(LAWS["laplace"], 2.0**50).sample(40_000) for _ in range(2)]
    assert np.unique(np.concatenate(samples)).size > 79_995


@pytest.mark.nightly(daily="1.5|70.3")
@pytest.mark.parametrize("scale", [1.0, 1.5, 70.3, 2.0**51 + 12345.5])
@pytest.mark.parametrize("noise", NOISES)
def test_the_thresholds_are_right_to_the_last_bit(noise, scale):
    law = BlockLaw.of(LAWS[noise], scale)
    for bits in (16, 64, 192):
        assert law.thresholds(bits) == twin_thresholds(law, bits)


@pytest.mark.nightly(daily=r"-(1.0|100.1)\]")
@pytest.mark.parametrize("scale", [1.0, 3.3, 100.1, 1e9])
@pytest.mark.parametrize("noise", NOISES)
def test_table_and_search_choose_as_the_thresholds_say_for_every_word(noise, scale):
    thresholds = twin_thresholds(BlockLaw.of(LAWS[noise], scale), 64)
    words = np.arange(2**16, dtype=np.uint16)
    undecided = sorted({threshold >> 48 for threshold in thresholds})
    more = os.urandom(8 * len(undecided))
    chosen = BulkSampler(LAWS[noise], scale, entropy=Script(words.tobytes(), more))._choices(2**16)
    full = [int(word) << 48 for word in words]
    for word, low in zip(undecided, np.frombuffer(more, np.uint64), strict=True):
        full[word] |= int(low) >> 16
    assert chosen.tolist() == [bisect_left(thresholds, word) for word in full]


@pytest.mark.nightly(daily="gaussian-1.0|laplace-64")
@pytest.mark.parametrize("scale", [1.0, 64.5])
@pytest.mark.parametrize("noise", NOISES)
def test_a_tie_in_64_bits_is_decided_by_further_bits(noise, scale):
    bytes_ = Script()
    sampler = BulkSampler(LAWS[noise], scale, entropy=bytes_)
    longer = twin_thresholds(sampler.law, 256)
    for i in (0, len(longer) // 2, len(longer) - 1):
        first, second, third = (longer[i] >> place & (2**64 - 1) for place in (192, 128, 64))
        for further, expected in (
            ([second - 1], i),
            ([second + 1], i + 1),
            ([second, third - 1], i),
            ([second, third + 1], i + 1),
        ):
            bytes_.tell(first << 16 & (2**64 - 1), *further)
            bytes_.left.insert(0, (first >> 48).to_bytes(2, "little"))
            assert sampler._choices(1).tolist() == [expected]
            assert not bytes_.left


def proposal(start, place, fraction, u):
    """One proposal in a block: y = start + place + F, F and U beginning with these 64 bits."""
    numbers = (np.array([number], np.int64) for number in (0, start, place))
    return _Proposals(*numbers, *(np.array([word], np.uint64) for word in (fraction, u)))


@pytest.mark.parametrize("scale", [100.1, 1e9, 2.0**51 + 12345.5])
@pytest.mark.parametrize("noise", DISCRETE)
def test_a_real_close_to_its_bound_is_compared_exactly(noise, scale):
    bytes_ = Script()
    sampler = BulkSampler(LAWS[noise], scale, entropy=bytes_)
    law = sampler.law
    for block, j in ((0, 1), (3, 2), (law.blocks - 1, 1), (law.blocks - 1, 5)):
        start = law.start(block)
        for place in {(1 << law.bits) - 1, max(1, (1 << law.bits) // 3)}:
            d = (law.exponent(start + place) - law.exponent(start)) / j
            near, second = divmod(math.floor(d * 2**128), 2**64)
            for u, further, expected in (
                (near - 512, [], True),
                (near - 1, [], True),
                (near + 1, [], False),
                (near + 512, [], False),
                (near, [0], True),
                (near, [second - 1], True),
                (near, [second + 1], False),
                (near, [2**64 - 1], False),
            ):
                bytes_.tell(*further)
                assert sampler._below(proposal(start, place, 0, u), j).tolist() == [expected]
                assert not bytes_.left


@pytest.mark.nightly(daily=r"-(64.0|999983.0)\]")
@pytest.mark.parametrize("scale", [64.0, 100.1, 999_983.0, 1.9 * 2.0**46])
@pytest.mark.parametrize("noise", NOISES)
def test_no_seven_bits_accept_unless_they_are_above_every_bound_of_their_block(noise, scale):
    sampler = BulkSampler(LAWS[noise], scale)
    law = sampler.law
    for h in range(law.blocks):
        ends = law.start(h), law.start(h + 1) - (noise != "rounded")
        start, last = (Fraction(end, 2**law.halvings) for end in ends)
        power = 1 if noise == "laplace" else 2
        spread = (last**power - start**power) / (power * Fraction(scale) ** power)
        assert spread < Fraction(1, 4)
        above = int(sampler._above[h + law.first])
        assert above - 1 < 128 * spread <= above


@pytest.mark.nightly
@pytest.mark.parametrize("scale", [64.0, 100.1, 999_983.0, 1.9 * 2.0**46])
@pytest.mark.parametrize("noise", NOISES)
def test_floats_decide_as_fractions_do(noise, scale, monkeypatch):
    """The same bits give the same draws where every comparison is made in fractions."""
    quick = BulkSampler(LAWS[noise], scale, entropy=stream("same")).sample(70_000)
    monkeypatch.setattr(bulk_noise, "_MARGIN", 2.0)
    exact = BulkSampler(LAWS[noise], scale, entropy=stream("same")).sample(70_000)
    assert np.array_equal(quick, exact)
    other = BulkSampler(LAWS[noise], scale, entropy=stream("other")).sample(70_000)
    assert np.count_nonzero(quick == other) < 70_000 / 4


@pytest.mark.parametrize("scale", [1.0, 1000.3, 2.0**40 + 0.5])
@pytest.mark.parametrize("noise", NOISES)
def test_a_choice_of_the_tail_is_drawn_there_with_either_sign(noise, scale):
    sampler = BulkSampler(LAWS[noise], scale, entropy=Script(b"\xff" * 80, b"\xff" * 320))
    sample = sampler.sample(40)
    law = sampler.law
    assert np.count_nonzero(np.abs(sample) >= law.start(law.blocks) >> law.halvings) > 20
    assert sample.min() < 0 < sample.max()


def test_a_refused_tail_is_drawn_anew_from_the_whole_law(monkeypatch):
    monkeypatch.setattr(SlowSampler, "from_tail", lambda self, law: None)
    sampler = BulkSampler(LAWS["gaussian"], 2.0**40, entropy=Script(b"\xff" * 80, b"\xff" * 320))
    sample = sampler.sample(40)
    assert np.count_nonzero(sample) == 40
    assert np.abs(sample).max() < sampler.law.start(sampler.law.blocks)


@pytest.mark.parametrize("above", [0, 1, 12345])
@pytest.mark.parametrize("noise", NOISES)
def test_the_tail_accepts_by_the_share_of_the_law_in_its_envelope(noise, above, monkeypatch):
    requests = []
    monkeypatch.setattr(SlowSampler, "geometric", lambda self, rate: above)
    monkeypatch.setattr(SlowSampler, "accept_at", lambda self, *request: requests.append(request))
    law = BlockLaw.of(LAWS[noise], 1000.3)
    assert SlowSampler().from_tail(law) is None
    ((exponent, fraction),) = requests
    if noise == "rounded":  # in halves; the square above its tangent at the whole step below
        assert (fraction.low, fraction.width) == (0, 1)
        start = law.start(law.blocks)
        for f in (Fraction(0), Fraction(1, 3), Fraction(1)):
            beyond = (start + above + f) ** 2 - start**2 - 2 * start * above
            assert exponent(f) == beyond / (8 * Fraction(1000.3) ** 2) >= 0
    else:  # the square above the tangent; Laplace's exponent is its own tangent
        assert (fraction.low, fraction.width) == (0, 0)
        expected = 0 if noise == "laplace" else above**2 / (2 * Fraction(1000.3) ** 2)
        assert exponent(Fraction(0)) == expected


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("scale", [1.0, 1000.3, 2.0**40 + 0.5])
@pytest.mark.parametrize("noise", NOISES)
def test_the_tail_follows_the_law_beyond_the_blocks(noise, scale):
    law, slow = BlockLaw.of(LAWS[noise], scale), SlowSampler()
    start = law.start(law.blocks) >> law.halvings
    drawn = np.array([draw for _ in range(2500) if (draw := slow.from_tail(law)) is not None])
    step = max(1, math.floor(scale / (6 if noise == "laplace" else 25)))
    ends = start + step * np.arange(1, 20)
    # Upper tails: differences of the distribution function would lose all their digits.
    if noise == "laplace":
        beyond = np.exp(-(ends - start) / scale)
    elif noise == "rounded":
        below = law.start(law.blocks) / 2.0**law.halvings
        beyond = norm.sf((ends - 0.5) / scale) / norm.sf(below / scale)
    elif scale > 1000:
        beyond = norm.sf((ends - 0.5) / scale) / norm.sf((start - 0.5) / scale)
    else:
        mass = np.exp(-((start + np.arange(400) + 0.0) ** 2 - start**2) / (2 * scale**2))
        beyond = np.array([mass[end - start :].sum() for end in ends]) / mass.sum()
    expected = -np.diff(np.concatenate([[1.0], beyond, [0.0]])) * drawn.size
    assert chi_square(counts(ends - 1, drawn), expected) > STRICT


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("exponent", ["0", "1/1000", "1/3", "1", "7/4", "4"])
def test_the_slow_bernoulli_is_exp(exponent):
    slow, x = SlowSampler(), Fraction(exponent)
    seen = sum(slow.accept(x) for _ in range(5000))
    p = math.exp(-x)
    assert min(binom.cdf(seen, 5000, p), binom.sf(seen - 1, 5000, p)) > STRICT


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("rate", ["8", "1", "3/7", "1/1000", "3/1000000000"])
def test_the_slow_geometric_is_geometric(rate):
    slow, x = SlowSampler(), Fraction(rate)
    drawn = np.array([slow.geometric(x) for _ in range(2500)])
    edges = np.unique(np.floor(np.linspace(0, 3, 13) / float(x)))
    below = -np.expm1(-float(x) * (edges + 1))
    expected = np.diff(np.concatenate([[0.0], below, [1.0]])) * drawn.size
    assert chi_square(counts(edges, drawn), expected) > STRICT


def test_draws_beyond_an_int64_stay_at_its_ends(monkeypatch):
    monkeypatch.setattr(SlowSampler, "from_tail", lambda self, law: 2**70)
    sampler = BulkSampler(LAWS["laplace"], 2.0**51, entropy=Script(b"\xff" * 80, b"\xff" * 320))
    assert set(sampler.sample(40).tolist()) == {2**63 - 1, 1 - 2**63}


@pytest.mark.parametrize("scale", [0.0, -1.0, 0.999, 2.0**52, math.inf, math.nan])
def test_a_scale_that_cannot_be_drawn_is_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        BulkSampler(LAWS["laplace"], scale)


def test_the_product_draws_from_the_operating_system():
    for sampler in (BulkSampler, SlowSampler):
        assert inspect.signature(sampler).parameters["entropy"].default is os.urandom


def test_no_draw_is_no_draw():
    assert BulkSampler(LAWS["gaussian"], 5.0).sample(0).shape == (0,)
