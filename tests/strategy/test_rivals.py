"""A kind of noise that is far from being taken has quick candidates alone; any other has all."""

from dataclasses import replace
from fractions import Fraction

import pytest

import dpquery.strategy.search.select as module
from dpquery.commands.plan import plan
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.measurement.ledger.caps import declared_funds
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import Plan
from dpquery.planning.accounting_choice import CHEAPEST, LEAD, SHARES, Rivals
from dpquery.planning.figures import BudgetShares, planned, prices
from dpquery.spec.parsing.read import parse
from dpquery.strategy.expected_error import weighted_queries
from dpquery.strategy.search.select import FAR, SEARCH_ROUNDS, SEARCHES, UNTIMED, select
from dpquery.version import __version__

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
LONG = [name for name, _ in SEARCH_ROUNDS[1] + SEARCH_ROUNDS[2] if name not in UNTIMED]


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
    assert not UNTIMED & {name for name, _ in SEARCH_ROUNDS[0] + SEARCH_ROUNDS[2]}


def test_a_kind_of_noise_that_is_far_has_its_quick_candidates_and_the_other_one_all():
    _, compiled = parsed(SPEC)
    asked = []

    def reach(one, other):
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


def test_answers_that_have_a_flaw_make_no_other_noise_far():
    workload = parsed(SPEC)[1].workload
    best = select(workload, noises=NOISES, time_limit=0)["gaussian"].best.name

    def reach(one, other):
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


def test_parts_are_to_reach_the_loss_at_which_their_noise_is_taken(monkeypatch):
    """Beside a bound on their loss above that they are given up."""
    _, compiled = parsed(SPEC)
    below = {}

    def parts(problem):
        below[problem.noise] = problem.least_loss
        raise UnsupportedWorkloadError("none")

    monkeypatch.setattr(module, "SEARCH_ROUNDS", (SEARCH_ROUNDS[0], (("Parts", parts),), ()))
    shares = {"laplace": 0.5, "gaussian": 1.0}
    chosen = select(compiled.workload, noises=NOISES, reach=lambda one, other: shares[one.noise])
    queries = weighted_queries(compiled.workload)
    for noise in NOISES:
        reached = chosen[noise].best.score
        assert below[noise] == pytest.approx(queries * (shares[noise] * reached) ** 2)


def test_where_either_may_be_taken_nothing_is_left_out():
    workload = parsed(SPEC)[1].workload
    plain = select(workload, noises=NOISES, time_limit=0)
    both = select(workload, noises=NOISES, time_limit=0, reach=lambda one, other: 1.0)
    for noise in NOISES:
        scores = [[(c.name, c.score) for c in s[noise].candidates] for s in (both, plain)]
        assert scores[0] == scores[1]
        assert not_searched(both[noise]) == []


def test_a_goal_is_searched_for_under_both_kinds_of_noise():
    _, compiled = parsed(SPEC)
    chosen = select(
        compiled.workload, noises=NOISES, objective="max", time_limit=0, reach=lambda a, b: 0.1
    )
    assert not_searched(chosen["laplace"]) == not_searched(chosen["gaussian"]) == []


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
    share = asked(chosen["laplace"], chosen["gaussian"])
    assert asked(chosen["gaussian"], chosen["laplace"]) == 1.0
    assert 1 / ratios[1] < 1
    assert share == pytest.approx(min(1.0, max(LEAD / ratios[0], 1 / ratios[1])), rel=0.02)


def test_noise_that_a_release_of_the_whole_budget_takes_is_searched_for(monkeypatch):
    """Laplace noise of two tables: far at a small epsilon, taken where all is spent at once.

    Where a user named the small one, it is not.
    """
    monkeypatch.setattr("dpquery.planning.accounting_choice.LEAD", 1.5)
    text = TWO_TABLES.replace("0.01", "1e-6")
    chosen, small = selections(text), rivals(text, epsilon="0.001")
    offers = [small._offer(chosen[noise]) for noise in NOISES]
    laplace, gaussian = ([offer.score_at(share) for share in SHARES] for offer in offers)
    assert laplace[0] > 1.5 * gaussian[0]
    assert laplace[-1] < gaussian[-1]
    assert small(chosen["laplace"], chosen["gaussian"]) == 1.0
    assert replace(small, any_share=False)(chosen["laplace"], chosen["gaussian"]) < 1.0


def test_where_the_plan_decides_each_noise_is_priced_in_what_it_is_cheapest_in():
    open_spec = SPEC.replace(", accounting: gdp", "")
    offers = rivals(open_spec, kinds=("zcdp", "gdp"))
    chosen = selections(open_spec)
    for noise in NOISES:
        assert offers._offer(chosen[noise]).shares.spec.accounting == CHEAPEST[noise]


def test_a_plan_leaves_searches_out_and_says_so_unless_both_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "town.yaml").write_text(SPEC)
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


def test_two_processes_find_what_one_finds(monkeypatch):
    monkeypatch.setattr(module, "LONG_ATTRIBUTE", 1)
    _, compiled = parsed(SPEC)
    found = [
        select(
            compiled.workload,
            noises=NOISES,
            time_limit=0,
            jobs=jobs,
            reach=lambda one, other: 0.5,
        )
        for jobs in (1, 2)
    ]
    for noise in NOISES:
        scores = [[(c.name, c.score, c.reason) for c in one[noise].candidates] for one in found]
        assert scores[0] == scores[1]
