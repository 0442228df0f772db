"""The noise is exactly the law it is said to be, and nothing is drawn that the budget forbids."""

import importlib.metadata
import math
import os
from bisect import bisect_left
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from dense import budget_for, p_value
from scipy.stats import norm
from test_bulk_noise import NOISES, Script, proposal, twin_thresholds

from dpquery.exceptions import DpqueryError
from dpquery.measurement.accounting import Guarantee, guarantee, noise_scale
from dpquery.measurement.noise import bulk_noise
from dpquery.measurement.noise import exact_noise as noise_module
from dpquery.measurement.noise.bulk_noise import BlockLaw, BulkSampler, LazyReal, SlowSampler
from dpquery.measurement.noise.exact_noise import BULK_ABOVE, draw, source
from dpquery.measurement.noise.laws import LAWS
from dpquery.progress import reporting
from dpquery.version import __version__

DRAWN = [
    *(("laplace", scale, 40_000) for scale in (1.0, 2.0, 5.0, 3.3, 12.0, 999_983.0)),
    *(("gaussian", scale, 30_000) for scale in (1.0, 2.0, 5.0, 3.3, 12.0)),
    # OpenDP takes half a minute for these.
    pytest.param("gaussian", 999_983.0, 30_000, marks=pytest.mark.slow),
    *(("rounded", scale, 30_000) for scale in (1.0, 2.0, 5.0, 3.3, 12.0, 999_983.0)),
]


@pytest.fixture(params=["OpenDP", "bulk"])
def either(request, monkeypatch):
    """Let one source draw for any number of answers."""
    monkeypatch.setattr(noise_module, "BULK_ABOVE", 10**9 if request.param == "OpenDP" else -1)


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize(("noise", "scale", "n"), DRAWN)
def test_draws_follow_the_exact_law_and_no_other(noise, scale, n, record_property):
    sample = draw(
        np.zeros(n, np.int64), budget=budget_for(noise, scale), sensitivity=1, scale=scale
    )
    assert p_value(noise, scale, sample) > 1e-9
    for factor in (1 / 1.3, 1.3):
        assert p_value(noise, scale * factor, sample) < 1e-9
    record_property("draws", n)


@pytest.mark.parametrize("noise", ["laplace", "gaussian", "rounded"])
def test_either_source_draws_at_the_very_scale(noise, monkeypatch):
    """No sample that a test can draw tells a scale from one a thousandth smaller: look at it."""
    real, drawn = noise_module._built, []

    class Looking(BulkSampler):
        def __init__(self, law, scale):
            super().__init__(law, scale)
            self.about = law, scale

        def sample(self, size):
            drawn.append(("bulk", *self.about, size))
            return super().sample(size)

    class Seen:
        def __init__(self, law, scale):
            self.measurement, self.about = real(law, scale), (law, scale)

        def map(self, d_in):
            return self.measurement.map(d_in)

        def __call__(self, arg):
            drawn.append(("OpenDP", *self.about, len(arg)))
            return self.measurement(arg)

    monkeypatch.setattr(noise_module, "BulkSampler", Looking)
    monkeypatch.setattr(noise_module, "_built", Seen)
    monkeypatch.setattr(noise_module, "BULK_ABOVE", 5)
    for size, name in ((5, "OpenDP"), (6, "bulk")):
        for scale in (1.0, 3.3, 2.0**40 + 0.5):
            zeros = np.zeros(size, np.int64)
            draw(zeros, budget=budget_for(noise, scale), sensitivity=1, scale=scale)
            drawer = "bulk" if noise == "rounded" else name
            # more may follow for refused draws
            assert drawn[0] == (drawer, LAWS[noise], scale, size)
            drawn.clear()


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("size", [1, 2, 1500])
def test_no_answer_comes_back_as_it_was(size, monkeypatch):
    monkeypatch.setattr(noise_module, "_CHUNK", 700)
    answers, scale = np.arange(size, dtype=np.int64), 2.0**51
    for noise in ("laplace", "gaussian", "rounded"):
        noisy = draw(answers, budget=budget_for(noise, scale), sensitivity=1, scale=scale)
        assert not np.count_nonzero(noisy == answers)  # a draw of zero: probability 2^-52


@pytest.mark.parametrize("noise", ["laplace", "gaussian", "rounded"])
def test_noise_far_out_in_the_tail_is_added_as_it_was_drawn(noise, monkeypatch):
    """No sample shows a tail that is cut off at some scales: a source returns it here."""
    scale, answers = 8.0, np.arange(6, dtype=np.int64)
    far = np.array([50, -50, 400, -400, 10**9, -(10**9)]) * int(scale)

    class Far:
        def map(self, d_in):
            return 1e-9

        def __call__(self, arg):
            return (arg + far).tolist()

    monkeypatch.setattr(noise_module, "_built", lambda noise, scale: Far())
    monkeypatch.setattr(BulkSampler, "sample", lambda self, size: far)
    for most in (10**9, -1):
        monkeypatch.setattr(noise_module, "BULK_ABOVE", most)
        noisy = draw(answers, budget=budget_for(noise, scale), sensitivity=1, scale=scale)
        np.testing.assert_array_equal(noisy, answers + far)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("noise", ["laplace", "rounded"])
def test_big_vectors_are_drawn_in_chunks_with_fresh_noise(noise, monkeypatch):
    monkeypatch.setattr(noise_module, "_CHUNK", 700)
    done = []
    settings = {"budget": budget_for(noise, 2.0**40), "sensitivity": 1, "scale": 2.0**40}
    with reporting(done.append):
        noisy = draw(np.zeros(2000, np.int64), **settings)
    assert done == [f"drawing noise: {percent}%" for percent in (35, 70, 100)]
    assert np.unique(np.abs(noisy)).size > 1990  # nor is one chunk minus another


@pytest.mark.usefixtures("either")
def test_an_empty_vector_needs_no_noise():
    empty = np.zeros(0, np.int64)
    assert draw(empty, budget=budget_for("laplace", 8.0), sensitivity=1, scale=8.0).size == 0


@pytest.mark.parametrize("sensitivity", [1, 3, 1000, 2**20 + 7])
@pytest.mark.parametrize("epsilon", ["0.001", "0.1", "1", "3.7"])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_librarys_own_charge_agrees_with_ours(noise, epsilon, sensitivity):
    budget = guarantee(noise, epsilon=Fraction(epsilon), delta=Fraction(1, 10**9))
    exact = sensitivity * 2**16 if noise == "laplace" else sensitivity**2 * 2**27
    scale = noise_scale(budget, exact)
    noisy = draw(np.zeros(1, np.int64), budget=budget, sensitivity=exact, scale=scale)
    assert noisy.shape == (1,)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("scale", [0.0, -1.0, 0.999, 1e-320, 2.0**52, 1e300, math.inf, math.nan])
def test_a_scale_outside_the_grid_is_refused(scale):
    with pytest.raises(ValueError, match="noise scale"):
        draw(np.zeros(1, np.int64), budget=budget_for("laplace", 8.0), sensitivity=1, scale=scale)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("kind", ["pure", "zcdp", "gdp"])
def test_a_scale_below_the_budget_is_refused(kind):
    budget = Guarantee(kind, Fraction(1, 10), Fraction(1), Fraction(1, 10**9))
    scale = noise_scale(budget, 2**20) * (1 - 1e-12)
    with pytest.raises(ValueError, match="does not meet the budget"):
        draw(np.zeros(1, np.int64), budget=budget, sensitivity=2**20, scale=scale)


@pytest.mark.parametrize(
    ("kind", "amount"), [("pure", (3, 8)), ("zcdp", (3, 128)), ("gdp", (3, 64))]
)
def test_bulk_noise_is_held_against_the_budget_to_the_last_bit(kind, amount, monkeypatch):
    """D1 / scale, D2^2 / (2 scale^2) and D2^2 / scale^2 in fractions: OpenDP's map has to round."""
    monkeypatch.setattr(noise_module, "BULK_ABOVE", -1)
    exact = Fraction(*amount)
    budget = Guarantee(kind, exact, exact, Fraction(0))
    zeros = np.zeros(3, np.int64)
    assert draw(zeros, budget=budget, sensitivity=3, scale=8.0).shape == (3,)
    for sensitivity, scale in ((3, math.nextafter(8.0, 0)), (4, 8.0), (0, 8.0), (-3, 8.0)):
        with pytest.raises(ValueError, match="does not meet the budget"):
            draw(zeros, budget=budget, sensitivity=sensitivity, scale=scale)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("answer", [2**62, -(2**62), 2**63 - 1, -(2**63)])
def test_an_answer_that_could_overflow_is_refused_without_showing_it(answer):
    answers = np.array([7, answer], np.int64)
    with pytest.raises(DpqueryError) as caught:
        draw(answers, budget=budget_for("laplace", 8.0), sensitivity=1, scale=8.0)
    assert str(abs(answer)) not in str(caught.value)


@pytest.mark.parametrize("answer", [0, -1, 2**62 - 1, 1 - 2**62, 2**40])
@pytest.mark.parametrize("noise", [0, 2**63 - 1, 1 - 2**63, 2**62, -(2**62) - 5, -(2**40)])
def test_bulk_noise_is_added_without_wrapping_around(answer, noise, monkeypatch):
    monkeypatch.setattr(noise_module, "BULK_ABOVE", -1)
    monkeypatch.setattr(BulkSampler, "sample", lambda self, size: np.full(size, noise, np.int64))
    (noisy,) = draw(
        np.array([answer]), budget=budget_for("laplace", 2.0**51), sensitivity=1, scale=2.0**51
    )
    assert noisy == max(-(2**62), min(2**62, answer + noise))


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(
    "answers", [np.zeros(2), np.zeros(2, np.int32), np.zeros((2, 2), np.int64)]
)
def test_only_vectors_of_int64_are_measured(answers):
    with pytest.raises(TypeError, match="int64"):
        draw(answers, budget=budget_for("laplace", 8.0), sensitivity=1, scale=8.0)


def test_a_failing_library_leaves_no_trace_of_values(monkeypatch):
    from opendp.mod import OpenDPException

    class Broken:
        def map(self, d_in):
            return d_in / 8.0

        def __call__(self, arg):
            raise OpenDPException("FailedFunction", f"{arg[0]} is not representable")

    monkeypatch.setattr(noise_module, "_built", lambda noise, scale: Broken())
    with pytest.raises(DpqueryError) as caught:
        draw(
            np.array([424242], np.int64),
            budget=budget_for("laplace", 8.0),
            sensitivity=1,
            scale=8.0,
        )
    assert "424242" not in str(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("charged", [0.0, -1.0, 0.1251, math.inf, math.nan])
def test_the_library_too_must_agree_to_the_budget(monkeypatch, charged):
    class Dear:
        def map(self, d_in):
            return charged

    monkeypatch.setattr(noise_module, "_built", lambda noise, scale: Dear())
    with pytest.raises(ValueError, match="privacy map"):
        draw(np.zeros(1, np.int64), budget=budget_for("laplace", 8.0), sensitivity=1, scale=8.0)


def test_the_source_that_is_named_is_the_one_that_draws(monkeypatch):
    class Called(Exception):
        pass

    def called(*_):
        raise Called

    monkeypatch.setattr(noise_module, "_mechanism", called)
    settings = {"budget": budget_for("laplace", 8.0), "sensitivity": 1, "scale": 8.0}
    bulk = f"the bulk sampler of dpquery {__version__}"
    assert {source(BULK_ABOVE + 1, law) for law in LAWS.values()} == {bulk}
    assert source(1, LAWS["rounded"]) == bulk
    assert draw(np.zeros(BULK_ABOVE + 1, np.int64), **settings).size == BULK_ABOVE + 1
    library = f"OpenDP {importlib.metadata.version('opendp')}"
    assert source(BULK_ABOVE, LAWS["laplace"]) == library
    with pytest.raises(Called):
        draw(np.zeros(BULK_ABOVE, np.int64), **settings)


# Rounded Gaussian noise: continuous noise whose bits are drawn as they are needed, and GDP.
#
# What it shares with the discrete laws is tested in test_bulk_noise.py, under the name "rounded".


SCALES = (1.0, 1.5, 3.3, 17.9, 40.0, 64.0, 1000.3, 2**20 + 0.1, 2.0**40, 1.9 * 2.0**46)


class Tape:
    """The operating system's bytes, kept to be read again in the order in which they were drawn."""

    def __init__(self):
        self.drawn = bytearray()

    def __call__(self, size):
        drawn = os.urandom(size)
        self.drawn += drawn
        return drawn

    def word(self, size):
        assert len(self.drawn) >= size
        word, self.drawn = int.from_bytes(self.drawn[:size], "little"), self.drawn[size:]
        return word


@cache
def blocks_of(noise, scale):
    law = BlockLaw.of(LAWS[noise], scale)
    return law, twin_thresholds(law, 64)


def one_draw(noise, scale, tape):
    """One draw by the docstring of the module, in fractions, from the bytes of a tape."""
    law, thresholds = blocks_of(noise, scale)
    undecided = {threshold >> 48 for threshold in thresholds}
    while True:
        first = tape.word(2)
        u = first << 48 | (tape.word(8) >> 16 if first in undecided else 0)
        block = bisect_left(thresholds, u) - (noise != "rounded")
        width = next(w for w in (1, 2, 4, 8) if 8 * w > law.bits)
        word = tape.word(width)
        place, sign, spare = word % 2**law.bits, word >> law.bits & 1, word >> law.bits + 1
        if noise != "rounded" and law.bits == 0:
            return (block + 1) * (-1) ** sign
        seven = (spare if 8 * width >= law.bits + 8 else tape.word(1)) % 128
        if block == -1:
            return 0
        start = Fraction((block << law.bits) + (noise != "rounded"), 2**law.halvings)
        end = start + Fraction(2**law.bits - (noise != "rounded"), 2**law.halvings)
        if seven >= 128 * exponent(noise, scale, end) - 128 * exponent(noise, scale, start):
            y = start + Fraction(place, 2**law.halvings)
            return nearest(y, y + Fraction(1, 2 ** (law.halvings + 64))) * (-1) ** sign
        u = Fraction(seven << 57 | tape.word(8) >> 7, 2**64)
        step = tape.word(8) if noise == "rounded" else 0
        y = start + (place + Fraction(step, 2**64)) / 2**law.halvings
        d = exponent(noise, scale, y) - exponent(noise, scale, start)
        j = 1
        while u < d / j:
            assert abs(u - d / j) > Fraction(1, 2**60)
            u, j = Fraction(tape.word(8), 2**64), j + 1
        if j % 2:
            return nearest(y, y + Fraction(noise == "rounded", 2**64)) * (-1) ** sign


def exponent(noise, scale, y):
    return y / Fraction(scale) if noise == "laplace" else y**2 / (2 * Fraction(scale) ** 2)


def nearest(low, high):
    """The integer that every y in [low, high) is nearest to."""
    rounded = math.floor(low + Fraction(1, 2))
    assert high <= rounded + Fraction(1, 2) or low == high == rounded
    return rounded


@pytest.mark.nightly(daily=r"-(1.0|17.9|1048576.1|1337.*)\]")
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("noise", NOISES)
def test_every_draw_is_what_its_bytes_make_it_in_fractions(noise, scale):
    tape = Tape()
    sampler, drawn = BulkSampler(LAWS[noise], scale, entropy=tape), 50
    far = sampler.law.start(sampler.law.blocks) >> sampler.law.halvings
    for _ in range(drawn):
        tape.drawn.clear()
        value = int(sampler.sample(1)[0])
        if abs(value) < far:
            assert one_draw(noise, scale, tape) == value
            assert not tape.drawn


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("noise", NOISES)
def test_the_exponent_is_that_of_the_very_scale(noise, scale):
    law = BlockLaw.of(LAWS[noise], scale)
    for steps in (1, 7, law.start(law.blocks), Fraction(10, 3)):
        assert law.exponent(steps) == exponent(noise, scale, Fraction(steps) / 2**law.halvings)


@pytest.mark.parametrize("scale", SCALES)
def test_a_sign_neither_shows_in_a_place_nor_in_what_is_refused(scale):
    """Every word of a block: each sign has each place as often, and the same seven bits of U."""
    sampler = BulkSampler(LAWS["rounded"], scale)
    bits, width = sampler.law.bits, 8 * sampler._word.itemsize
    lows = range(2**bits) if bits < 9 else [0, 1, 2**bits - 1, 2**bits // 3]
    highs = range(2 ** min(7, width - bits - 1))
    seen = {}
    for sign in (0, 1):
        words = np.array([h << bits + 1 | sign << bits | p for p in lows for h in highs])
        seven = sampler._seven_bits(words.astype(sampler._word))
        if width >= bits + 8:
            seen[sign] = seven.tolist()
            assert sorted(set(seen[sign])) == [*highs]
        else:
            seen[sign] = [int(seven.max(initial=0)) < 128]
    assert seen[0] == seen[1]


class Undecided(Exception):
    pass


class BitByBit(SlowSampler):
    """Draws bits from a list, one at a time."""

    def bits(self, size):
        assert size == 1
        if not path_left:
            raise Undecided
        return path_left.pop()


path_left = []


def bounds_of(accept, deepest):
    """Bounds on the probability of yes, by walking all answers that a source of bits can give."""
    low, high, paths = Fraction(0), Fraction(1), [[]]
    while paths:
        path = paths.pop()
        path_left[:] = reversed(path)
        try:
            answer = accept()
        except Undecided:
            if len(path) < deepest:
                paths += [[*path, 0], [*path, 1]]
            continue
        assert not path_left
        share = Fraction(1, 2 ** len(path))
        low, high = (low + share, high) if answer else (low, high - share)
    return low, high


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("exponent", "deepest", "gap"),
    [
        (lambda f: f * (f + 1) / 4, 12, 0.1),
        (lambda f: Fraction(math.floor(2 * f), 2), 14, 0.02),
        (lambda f: Fraction(math.floor(2 * f)), 14, 0.06),
        (lambda f: Fraction(3 * math.floor(2 * f), 2), 12, 0.2),
    ],
)
def test_a_real_exponent_is_accepted_with_its_very_probability(exponent, deepest, gap, monkeypatch):
    """Bits are drawn one at a time here, and every way in which they can fall is tried.

    Where the exponent is 0 in one half, F drawn anew for every A_j would be accepted as often as
    the mean exponent says: 0.61 in place of 0.68 for 0 and 1.
    """
    monkeypatch.setattr(bulk_noise, "_DRAWN_ON", 1)
    slow = BitByBit()
    low, high = bounds_of(lambda: slow.accept_at(exponent, LazyReal()), deepest)
    expected = np.mean([math.exp(-float(exponent(Fraction(i, 4096)))) for i in range(4096)])
    assert high - low < gap
    assert low <= expected + 1e-4
    assert expected - 1e-4 <= high


@pytest.mark.parametrize("scale", [40.0, 100.1, 1e9, 2.0**51 + 12345.5])
def test_further_bits_of_a_place_are_drawn_once_for_all_comparisons(scale):
    """U and d agree in 64 bits: more of both are drawn, and a later A_j sees the same bits."""
    bytes_ = Script()
    sampler = BulkSampler(LAWS["rounded"], scale, entropy=bytes_)
    law = sampler.law
    place, f1, f2 = (1 << law.bits) - 1, 2**63 + 12345, 2**62 + 999
    start = law.start(law.blocks - 1)
    for first_below in (True, False):
        # d at F = f1 f2 ..., and U_1 a little beside it in its bits 65 to 128
        d = law.height(start, place, 1, Fraction(f1 << 64 | f2, 2**128))
        near, second = divmod(math.floor(d * 2**128), 2**64)
        undecided = proposal(start, place, f1, near)
        further = second + (-8 if first_below else 8)
        bytes_.tell(further, f2)
        assert sampler._below(undecided, 1).tolist() == [first_below]
        assert not bytes_.left
        if not first_below:
            continue
        half = law.height(start, place, 2, Fraction(f1 << 64 | f2, 2**128))
        near, second = divmod(math.floor(half * 2**128), 2**64)
        for further, expected in ((second - 8, True), (second + 8, False)):
            u = np.array([near], np.uint64)
            again = undecided.where(np.array([True]), u)
            bytes_.tell(further, 2**63)  # of F the bits from 129 on: those before are known
            assert sampler._below(again, 2).tolist() == [expected]
            del undecided.drawn_on[0]
            undecided.drawn_on[0] = LazyReal(Fraction(f1 << 64 | f2, 2**128), Fraction(1, 2**128))


@pytest.mark.parametrize("scale", [1.0, 1.1, 1.5, 2.0, 3.0, 10.0, 100.0])
def test_the_variance_is_that_of_the_scale_and_a_twelfth(scale):
    k = np.arange(1, math.ceil(14 * scale) + 2)
    mass = norm.sf((k - 0.5) / scale) - norm.sf((k + 0.5) / scale)
    stated = LAWS["rounded"].std(scale)
    assert stated == pytest.approx(math.sqrt(2 * (k**2.0 * mass).sum()), rel=2e-8)


def rounded(scale):
    k = np.abs(np.arange(-math.ceil(38 * scale), math.ceil(38 * scale) + 1))
    return norm.sf((k - 0.5) / scale) - norm.sf((k + 0.5) / scale)
