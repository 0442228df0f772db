"""The noise is exactly the law it is said to be, and nothing is drawn that the budget forbids."""

import importlib.metadata
import math
from fractions import Fraction

import numpy as np
import pytest
from dense import budget_for, p_value

from dpquery.exceptions import DpqueryError
from dpquery.measurement.accounting import Guarantee, guarantee, noise_scale
from dpquery.measurement.noise import exact_noise
from dpquery.measurement.noise import exact_noise as noise_module
from dpquery.measurement.noise.bulk_noise import BulkSampler
from dpquery.measurement.noise.exact_noise import BULK_ABOVE, draw, source
from dpquery.progress import reporting
from dpquery.version import __version__

LAWS = [
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
@pytest.mark.parametrize(("noise", "scale", "n"), LAWS)
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
        def __init__(self, noise, scale):
            super().__init__(noise, scale)
            self.scale = scale

        def sample(self, size):
            drawn.append(("bulk", noise, self.scale, size))
            return super().sample(size)

    class Seen:
        def __init__(self, noise, scale):
            self.measurement, self.about = real(noise, scale), (noise, scale)

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
            assert drawn[0] == (drawer, noise, scale, size)  # more may follow for refused draws
            drawn.clear()


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("size", [1, 2, 1500])
def test_no_answer_comes_back_as_it_was(size, monkeypatch):
    monkeypatch.setattr(noise_module, "_CHUNK", 700)
    answers, scale = np.arange(size, dtype=np.int64), 2.0**51
    for noise in ("laplace", "gaussian", "rounded"):
        noisy = draw(answers, budget=budget_for(noise, scale), sensitivity=1, scale=scale)
        assert not np.count_nonzero(noisy == answers)  # a draw of zero: probability 2^-52


@pytest.mark.usefixtures("either")
def test_noise_is_added_to_each_answer_in_its_place():
    answers = np.arange(5, dtype=np.int64) * 2**40
    noisy = draw(answers, budget=budget_for("laplace", 8.0), sensitivity=1, scale=8.0)
    assert noisy.dtype == np.int64
    assert np.abs(noisy - answers).max() < 8 * 100  # beyond 100 scales: probability e^-100
    assert not np.shares_memory(noisy, answers)


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
@pytest.mark.parametrize("noise", ["gaussian", "rounded"])
def test_two_draws_never_share_their_noise(noise):
    zeros = np.zeros(500, np.int64)
    settings = {"budget": budget_for(noise, 2.0**40), "sensitivity": 1, "scale": 2.0**40}
    assert np.count_nonzero(draw(zeros, **settings) == draw(zeros, **settings)) < 5


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


@pytest.mark.parametrize("version", ["0.14.1", "0.15.9", "0.9"])
def test_an_old_library_is_refused(monkeypatch, version):
    monkeypatch.setattr(
        exact_noise, "installed", lambda name: version if name == "opendp" else "99.0"
    )
    with pytest.raises(DpqueryError, match="not trusted"):
        draw(np.zeros(1, np.int64), budget=budget_for("laplace", 8.0), sensitivity=1, scale=8.0)


def test_the_source_that_is_named_is_the_one_that_draws(monkeypatch):
    class Called(Exception):
        pass

    def called(*_):
        raise Called

    monkeypatch.setattr(noise_module, "_mechanism", called)
    settings = {"budget": budget_for("laplace", 8.0), "sensitivity": 1, "scale": 8.0}
    bulk = f"the bulk sampler of dpquery {__version__}"
    assert {source(BULK_ABOVE + 1, kind) for kind in ("pure", "zcdp", "gdp")} == {bulk}
    assert source(1, "gdp") == bulk
    assert draw(np.zeros(BULK_ABOVE + 1, np.int64), **settings).size == BULK_ABOVE + 1
    assert "OpenDP" in source(BULK_ABOVE, "pure")
    with pytest.raises(Called):
        draw(np.zeros(BULK_ABOVE, np.int64), **settings)


def test_the_library_is_named_with_its_version():
    assert source(BULK_ABOVE, "zcdp") == f"OpenDP {importlib.metadata.version('opendp')}"
