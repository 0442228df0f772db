"""The published baselines: exact errors, their optimal budgets, and the papers' figures."""

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import baselines
import numpy as np
import pytest
from dense import dense_workload

import dpquery.strategy.search.select as module
from dpquery.commands.plan import plan
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.measurement.ledger.caps import declared_funds
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.gram import gram
from dpquery.operators.ranges import Prefix
from dpquery.plan_file.plan import Plan
from dpquery.planning.accounting_choice import CHEAPEST, SHARES, Rivals
from dpquery.planning.figures import BudgetShares, planned, prices
from dpquery.spec.parsing.read import parse
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.search import closed_forms
from dpquery.strategy.search.candidates import Problem
from dpquery.strategy.search.select import (
    CLOSED_FORMS,
    FAR,
    LEADS,
    SEARCH_ROUNDS,
    SEARCHES,
    UNTIMED,
    select,
)
from dpquery.version import __version__

noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])


def problem_of(workload, noise="laplace"):
    return Problem(workload, gram(workload), noise, seed=0)


def loss_of(proposal, workload):
    return expected_error(proposal.strategy, workload).weighted_rmse ** 2 * weighted_queries(
        workload
    )


def marginals_of(shape, sets, weights=None):
    blocks = tuple(marginal(shape, a) for a in sets)
    return Workload(shape, blocks, weights or (1.0,) * len(sets))


def every_baseline(workload, noise):
    problem, proposals = problem_of(workload, noise), {}
    for name, build in (*CLOSED_FORMS, *baselines.BASELINES.items()):
        with suppress(UnsupportedWorkloadError):
            proposals[name] = build(problem)
    return proposals


CUBE = marginals_of((2, 2, 2), [(0,), (0, 1)])


def test_the_worked_example_of_the_data_cube_paper():
    """Fig. 1 of [YCPS13]: 48, 46.17 and, by least squares, 28 % below the first."""
    problem = problem_of(CUBE)
    uniform = 2 * loss_of(closed_forms.plain_mechanism(problem), CUBE)
    budgeted = 2 * loss_of(closed_forms.budgeted_mechanism(problem), CUBE)
    assert uniform == pytest.approx(48)
    assert budgeted == pytest.approx(2 * (2 ** (1 / 3) + 4 ** (1 / 3)) ** 3, rel=1e-4)
    assert 1 - 2 * loss_of(baselines.budgeted_marginals(problem), CUBE) / 48 > 0.27


@pytest.mark.nightly(daily="[01]-")
@noises
@pytest.mark.parametrize("seed", range(5))
def test_no_other_shares_of_the_budget_are_better(seed, noise):
    rng = np.random.default_rng(seed)
    sets = [a for k in range(1, 3) for a in combinations(range(3), k) if rng.random() < 0.7]
    workload = marginals_of((3, 2, 4), sets or [(0,), (1,)])
    problem = problem_of(workload, noise)
    for optimal in (closed_forms.budgeted_mechanism, closed_forms.budgeted_fourier):
        best = optimal(problem)
        for _ in range(20):
            weights = best.strategy.weights
            if isinstance(weights, dict):
                moved = {b: max(1, int(v * rng.uniform(0.8, 1.25))) for b, v in weights.items()}
            else:
                moved = tuple(max(1, int(v * rng.uniform(0.8, 1.25))) for v in weights)
            fields = {**vars(best.strategy), "weights": moved}
            names = ("name", "noise", "workload", "cores", "weights")
            other = type(best.strategy)(**{key: fields[key] for key in names if key in fields})
            assert loss_of(type(best)(other), workload) >= loss_of(best, workload) * (1 - 1e-6)


@noises
@pytest.mark.parametrize("pair", ["Workload", "Marginals", "DataCube", "Fourier"])
def test_budgets_repay_where_tables_differ(pair, noise):
    workload = marginals_of((9, 2, 5), [(0, 1), (2,), (1, 2), ()], (1.0, 50.0, 1.0, 0.1))
    proposals = every_baseline(workload, noise)
    assert loss_of(proposals[pair + "+"], workload) < loss_of(proposals[pair], workload) * 0.999


def test_budgeted_fourier_is_optimal_for_marginals_under_gaussian_noise():
    workload = marginals_of((3, 2, 4), [(0, 1), (1, 2), (0,)])
    V = dense_workload(workload)[0]
    roots = np.sqrt(np.maximum(np.linalg.eigvalsh(V.T @ V), 0)).sum()
    proposal = closed_forms.budgeted_fourier(problem_of(workload, "gaussian"))
    assert loss_of(proposal, workload) == pytest.approx(roots**2 / 24, rel=1e-4)


def test_what_is_too_much_is_refused_with_a_reason():
    shape = (2,) * 14
    many = marginals_of(shape, [a for k in range(4) for a in combinations(range(14), k)] * 9)
    for build in (baselines.marginals, baselines.fourier, baselines.data_cube):
        with pytest.raises(UnsupportedWorkloadError, match="tables"):
            build(problem_of(many))
    wide = marginals_of((2,) * 13, [tuple(range(13))])
    with pytest.raises(UnsupportedWorkloadError, match="more than 12 attributes"):
        baselines.fourier(problem_of(wide))
    greedy = marginals_of((2,) * 12, [a for k in range(12) for a in combinations(range(12), k)])
    with pytest.raises(UnsupportedWorkloadError, match="to choose among"):
        baselines.data_cube(problem_of(greedy))
    one = Workload((4,), (product((4,), {0: Prefix(4)}),), (1.0,))
    with pytest.raises(UnsupportedWorkloadError, match="whole budget"):
        closed_forms.budgeted_mechanism(problem_of(one))
    huge = marginals_of((9000, 9000), [(0, 1)])
    with pytest.raises(UnsupportedWorkloadError, match="cells to measure"):
        baselines.marginals(problem_of(huge))


# A kind of noise that is far from being taken has quick candidates alone; any other has all.


SPEC = """\
dataset: {id: town, version: 1}
privacy: {unit: row, delta: 0.01}
budget: {epsilon: 1, delta: 0.01, accounting: gdp}
domain:
  sex: {values: [F, M]}
  job: {values: [a, b, c]}
  town: {values: [x, y, z]}
  born: {values: [here, there]}
  home: {values: [own, rent, other]}
workload:
  - name: pairs
    marginals: {ways: 2, over: [sex, job, town, born, home]}
"""
TWO_TABLES = SPEC[: SPEC.index("workload")] + "workload:\n"
for column in ("job", "home"):
    TWO_TABLES += f"  - {{name: {column}, product: {{{column}: identity}}}}\n"
NOISES = ("laplace", "gaussian")
LONG = [name for name, _ in sum(SEARCH_ROUNDS[1:], ()) if name not in UNTIMED]


def parsed(text):
    spec = parse(text, name="town.yaml", files={})
    return spec, compile_spec(spec)


def rivals(text, *, epsilon="0.2", kinds=None):
    spec, compiled = parsed(text)
    funds = {kind: declared_funds(spec.counted_in(kind)) for kind in kinds or [spec.accounting]}
    return Rivals(spec, compiled, funds, Fraction(epsilon), spec.privacy.delta)


def selections(text):
    return select(parsed(text)[1].workload, noises=NOISES, time_limit=0)


def not_searched(selection):
    return [candidate.name for candidate in selection.candidates if candidate.reason == FAR]


def test_the_rounds_are_the_table_of_searches_and_parts_come_after_a_comparison():
    assert sum(SEARCH_ROUNDS, ()) == SEARCHES
    assert [name for name, _ in SEARCH_ROUNDS[1] if name in UNTIMED] == ["Parts"]
    assert not UNTIMED & {name for name, _ in SEARCH_ROUNDS[0] + sum(SEARCH_ROUNDS[2:], ())}


def test_a_kind_of_noise_that_is_far_has_its_quick_candidates_and_the_other_one_all():
    _, compiled = parsed(SPEC)
    asked = []

    def reach(one, other, lead):
        asked.append((one.noise, other.noise))
        return 0.5 if one.noise == "laplace" else 1.0

    both = select(compiled.workload, noises=NOISES, time_limit=0)
    chosen = select(compiled.workload, noises=NOISES, time_limit=0, reach=reach)
    assert set(asked) == {("gaussian", "laplace"), ("laplace", "gaussian")}
    assert not_searched(chosen["laplace"]) == LONG
    assert not_searched(chosen["gaussian"]) == []
    assert chosen["gaussian"].best.score == both["gaussian"].best.score
    quick = [c for c in both["laplace"].candidates if c.name not in {*LONG, "Parts", "OPT_0"}]
    assert {c.name: c.score for c in quick}.items() <= {
        c.name: c.score for c in chosen["laplace"].candidates
    }.items()


def test_what_one_kind_finds_puts_the_other_far_before_it_has_searched():
    """Each comparison allows for what is left to search: less before the last round."""
    compiled, leads = parsed(SPEC)[1], []

    def reach(one, other, lead):
        leads.append(lead)
        searched = any(candidate.name in ("OPT_x", "OPT_0") for candidate in other.candidates)
        return 0.5 if one.noise == "laplace" and searched else 1.0

    chosen = select(compiled.workload, noises=NOISES, reach=reach)
    assert not_searched(chosen["laplace"]) == LONG
    assert not_searched(chosen["gaussian"]) == []
    assert leads == sorted(leads, reverse=True)
    assert set(leads) == {*LEADS[1:]}


def test_answers_that_have_a_flaw_make_no_other_noise_far():
    workload = parsed(SPEC)[1].workload
    best = select(workload, noises=NOISES, time_limit=0)["gaussian"].best.name

    def reach(one, other, lead):
        return 0.5 if other.best.name == best and other.noise == "gaussian" else 1.0

    for flaw, left_out in (("", LONG), ("none of its answers comes back", [])):
        found = select(
            workload,
            noises=NOISES,
            time_limit=0,
            reach=reach,
            flaw_of=lambda strategy, flaw=flaw: flaw if strategy.name == best else "",
        )
        assert not_searched(found["laplace"]) == left_out


@pytest.mark.nightly
def test_parts_are_to_reach_the_loss_at_which_their_noise_is_taken(monkeypatch):
    """Beside a bound on their loss above that they are given up."""
    _, compiled = parsed(SPEC)
    below = {}

    def parts(problem):
        below[problem.noise] = problem.least_loss
        raise UnsupportedWorkloadError("none")

    rounds = (SEARCH_ROUNDS[0], (("Parts", parts),), (), ())
    monkeypatch.setattr(module, "SEARCH_ROUNDS", rounds)
    shares = {"laplace": 0.5, "gaussian": 1.0}
    chosen = select(compiled.workload, noises=NOISES, reach=lambda one, *_: shares[one.noise])
    queries = weighted_queries(compiled.workload)
    for noise in NOISES:
        reached = chosen[noise].best.score
        assert below[noise] == pytest.approx(queries * (shares[noise] * reached) ** 2)


def test_where_either_may_be_taken_nothing_is_left_out():
    workload = parsed(SPEC)[1].workload
    plain = select(workload, noises=NOISES, time_limit=0)
    both = select(workload, noises=NOISES, time_limit=0, reach=lambda *_: 1.0)
    for noise in NOISES:
        scores = [[(c.name, c.score) for c in s[noise].candidates] for s in (both, plain)]
        assert scores[0] == scores[1]
        assert not_searched(both[noise]) == []


@pytest.mark.nightly(daily="zcdp")
@pytest.mark.parametrize(
    ("accounting", "epsilon"), [("gdp", "0.2"), ("zcdp", "0.2"), ("gdp", "0.9")]
)
def test_the_share_of_a_score_is_by_the_errors_that_release_compares(accounting, epsilon):
    """Recomputed from `prices`, by which a release takes its noise, there and for all at once."""
    text = SPEC.replace("accounting: gdp", f"accounting: {accounting}")
    spec, compiled = parsed(text)
    chosen, asked = selections(text), rivals(text, epsilon=epsilon)
    kept = tuple(planned(chosen[noise], spec, compiled) for noise in NOISES)
    plan_ = Plan(__version__, "town.yaml", text, {}, "rmse", (), 0, selections=kept)
    shares = BudgetShares(spec, compiled.workload, spec.privacy.delta, declared_funds(spec))
    ratios = []
    for epsilon in (asked.epsilon, Fraction(1)):
        first, second = prices(plan_, shares, epsilon=epsilon)
        assert first.selection.noise == "gaussian"
        ratios.append(second.equal_score / first.equal_score)
    share = asked(chosen["laplace"], chosen["gaussian"], 2.0)
    assert asked(chosen["gaussian"], chosen["laplace"], 2.0) == 1.0
    assert 1 / ratios[1] < 1
    assert share == pytest.approx(min(1.0, max(2.0 / ratios[0], 1 / ratios[1])), rel=0.02)


def test_noise_that_a_release_of_the_whole_budget_takes_is_searched_for():
    """Laplace noise of two tables: far at a small epsilon, taken where all is spent at once.

    Where a user named the small one, it is not.
    """
    text = TWO_TABLES.replace("0.01", "1e-6")
    chosen, small = selections(text), rivals(text, epsilon="0.001")
    offers = [small._offer(chosen[noise]) for noise in NOISES]
    laplace, gaussian = ([offer.score_at(share) for share in SHARES] for offer in offers)
    assert laplace[0] > 1.5 * gaussian[0]
    assert laplace[-1] < gaussian[-1]
    assert small(chosen["laplace"], chosen["gaussian"], 1.5) == 1.0
    assert replace(small, any_share=False)(chosen["laplace"], chosen["gaussian"], 1.5) < 1.0


def test_where_the_plan_decides_each_noise_is_priced_in_what_it_is_cheapest_in():
    open_spec = SPEC.replace(", accounting: gdp", "")
    offers = rivals(open_spec, kinds=("zcdp", "gdp"))
    chosen = selections(open_spec)
    for noise in NOISES:
        assert offers._offer(chosen[noise]).shares.spec.accounting == CHEAPEST[noise]


def test_a_plan_leaves_searches_out_and_says_so_unless_both_are_asked_for(own_folder):
    (own_folder / "town.yaml").write_text(SPEC)
    reports = [
        plan("town.yaml", ledger_path="l.db", epsilon="0.2", time_limit=0, search_both=both)
        for both in (False, True)
    ]
    left_out = [
        {c.name for s in report.plan.selections for c in s.candidates if c.reason == FAR}
        for report in reports
    ]
    assert left_out == [set(LONG), set()]
    first, second = (report.priced[0] for report in reports)
    assert first.selection.best == second.selection.best
    assert first.selection.strategy == second.selection.strategy
