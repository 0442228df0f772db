"""Between linear strategies and RAP: a plan rehearses on public data only, and says what it saw."""

import dataclasses
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_support import kinds, ok, refused
from rehearsal_support import SPEC, Learner, records, write_csv

from dpquery import proxy_release, rehearsal
from dpquery.choice import Wanted, stage_for
from dpquery.exceptions import OutOfTimeError
from dpquery.operators.compile import compile_spec
from dpquery.proxy import proxy_for
from dpquery.reconstruction.relaxed import RelaxedRows
from dpquery.release.manifest import RELAXED_ROWS_FILE
from dpquery.release.relaxed import relaxed_table
from dpquery.spec.parse import parse
from dpquery.strategy.plan_file import read_plan, write_plan
from dpquery.strategy.planned_rap import PlannedRap
from dpquery.strategy.prior import sample_prior, sample_rows, sample_tables, spread
from dpquery.strategy.rap import RapSettings, default_settings

REHEARSED = PlannedRap(
    settings=RapSettings(rounds=2, selected=3, relaxed_rows=50, seed=0),
    epsilon=Fraction(1, 10),
    delta=Fraction(1, 10**9),
    proxy="the default prior",
    repetitions=3,
    rmse=4.5,
    rmse_spread=0.25,
    max_error=17.0,
    max_error_spread=2.0,
    linear_rmse=11.0,
    linear_max_error=60.5,
    preferred=True,
)
SPEC_READ = parse(SPEC, name="w.yaml", files={})
COMPILED = compile_spec(SPEC_READ)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder of one's own with the spec and its public data, where RAP is the dense twin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(rehearsal, "RapProjection", Learner)
    (tmp_path / "workload.yaml").write_text(SPEC)
    write_csv(tmp_path / "public.csv", records(1500, seed=3))
    return tmp_path


def plan(*arguments):
    return json.loads(ok("plan", "workload.yaml", "--json", *arguments).out)


# The choice.


@pytest.mark.parametrize(("epsilon", "preferred"), [("0.01", True), ("10", False)])
@pytest.mark.parametrize(
    ("objective", "proxy"), [("rmse", ()), ("rmse", ("--proxy", "public.csv")), ("max", ())]
)
def test_low_signal_picks_rap_and_high_signal_the_linear_strategy(
    small, epsilon, preferred, objective, proxy
):
    # The number of rows is public here: a noisy one would swamp all errors at low signal.
    text = SPEC.replace("about 2000", "2000").replace("add-remove", "replace")
    Path("workload.yaml").write_text(text)
    rap = plan("--epsilon", epsilon, "--objective", objective, *proxy)["rap"]
    assert rap["preferred"] is preferred
    name = "rmse" if objective == "rmse" else "max_error"
    assert (rap[name] < rap[f"linear_{name}"]) is preferred


def test_the_same_plan_has_the_same_bytes(small):
    seen = []
    for _ in range(2):
        ok("plan", "workload.yaml", "--epsilon", "0.1")
        seen.append(Path("dpquery.plan").read_bytes())
    assert seen[0] == seen[1]
    assert read_plan(seen[0]).relaxed.epsilon == Fraction(1, 10)


def test_more_time_is_asked_for_where_the_rehearsal_was_cut_short(small, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(rehearsal, "process_time", lambda: next(clock) / 100)
    monkeypatch.setattr("dpquery.choice.process_time", lambda: 0.0)
    found = plan("--epsilon", "1", "--time-limit", "1")
    assert found["rap"]["repetitions"] < 3
    assert "of 3 rehearsals of RAP were finished; give --time-limit more" in found["remark"]
    found = plan("--epsilon", "1", "--time-limit", "0.01")
    assert "rap" not in found
    assert found["remark"].startswith("RAP was not compared: not finished within")
    arguments = ("workload.yaml", "--mechanism", "rap", "--time-limit", "0.01")
    assert "--time-limit" in refused("plan", *arguments, code=2)


def test_a_mechanism_can_be_asked_for(small):
    assert plan("--epsilon", "10", "--mechanism", "rap")["rap"]["preferred"] is True
    assert "rap" not in plan("--epsilon", "0.01", "--mechanism", "linear")
    shown = ok("plan", "workload.yaml", "--epsilon", "10", "--mechanism", "rap").out
    assert "RAP (simulated)" in shown
    assert "preferred: RAP, as it was asked for" in shown


@pytest.fixture
def stage():
    delta = Fraction(1, 10**9)
    return stage_for(SPEC_READ, COMPILED, Wanted(), epsilon=Fraction(1), delta=delta, targets=False)


@pytest.mark.parametrize("start", [(16, 1), (1, 1), (8, 8), (4, 20)])
@pytest.mark.parametrize("objective", ["rmse", "max"])
def test_the_search_goes_down_the_valley_and_along_it(stage, monkeypatch, start, objective):
    tried = []

    def valley(stage, settings, *, repetitions):
        tried.append(settings)
        T, K = settings.rounds, settings.selected
        error = 1 + math.log2(T * K / 16) ** 2 + 0.1 * math.log2(T / 8) ** 2
        return rehearsal.Rehearsed(settings, (rehearsal.Errors(error, error),), stopped=False)

    monkeypatch.setattr(rehearsal, "rehearse", valley)
    found, finished = rehearsal.search(stage, RapSettings(*start, 10, 0), objective=objective)
    assert finished
    assert found.rounds * found.selected in (16, 20)
    assert len(tried) <= 12


def test_a_search_that_is_out_of_time_keeps_the_best_found(stage, monkeypatch):
    def slow(stage, settings, *, repetitions):
        if settings.selected > 4:
            raise OutOfTimeError("no")
        return rehearsal.Rehearsed(settings, (rehearsal.Errors(1.0, 1.0),), stopped=False)

    monkeypatch.setattr(rehearsal, "rehearse", slow)
    start = RapSettings(2, 4, 10, 0)
    assert rehearsal.search(stage, start, objective="rmse") == (start, False)


def test_the_settings_are_searched_where_that_is_asked_for(small, monkeypatch):
    found = RapSettings(3, 7, 10, 0)
    monkeypatch.setattr("dpquery.choice.search", lambda *_, objective: (found, False))
    seen = plan("--epsilon", "1", "--rap-search")
    assert seen["rap"]["settings"] == vars(found)
    assert "the search for RAP's settings was not finished" in seen["remark"]


# Where nothing is rehearsed.

WITHOUT = {
    "no rows": SPEC.replace(", rows: about 2000", ""),
    "no delta": SPEC.replace(", delta: 1e-9}", "}"),
    "a budget in pure epsilon": SPEC.replace("20, delta: 1e-9", "20"),
}
REMEDIES = {
    "no rows": "declare `dataset: {rows: about 50000}`",
    "no delta": "it takes `delta` under `privacy`",
    "a budget in pure epsilon": "it takes `delta` under `privacy`, and a budget",
}


@pytest.mark.parametrize("without", WITHOUT)
def test_nothing_is_rehearsed_without_rows_and_a_budget_for_it(small, without, monkeypatch):
    Path("workload.yaml").write_text(WITHOUT[without])
    monkeypatch.setattr(rehearsal, "RapProjection", None)
    assert "rap" not in plan()
    assert "RAP" not in ok("plan", "workload.yaml").out
    assert b"relaxed" not in Path("dpquery.plan").read_bytes()
    for asked in (("--mechanism", "rap"), ("--proxy", "public.csv"), ("--rap-search",)):
        assert REMEDIES[without] in refused("plan", "workload.yaml", *asked, code=2)


def test_rap_is_not_compared_where_targets_are_to_be_met(small):
    target = ("--target", "pairs: sd <= 9")
    assert "rap" not in plan(*target, "--time-limit", "0")
    message = refused("plan", "workload.yaml", *target, "--mechanism", "rap", code=2)
    assert "leave --target out" in message


def test_a_proxy_for_the_linear_mechanism_is_a_mistake(small):
    arguments = ("--mechanism", "linear", "--proxy", "public.csv")
    assert "leave --mechanism linear out" in refused("plan", "workload.yaml", *arguments, code=2)
    assert "choose one of auto" in refused("plan", "workload.yaml", "--mechanism", "best", code=2)


# The proxies.


def answers_of(codes, rows):
    """The dense twin: count the codes of every cell, and ask the workload of them."""
    x = np.zeros(SPEC_READ.domain.shape)
    np.add.at(x, tuple(codes.T), 1)
    return COMPILED.workload.matvec(x.ravel()) * rows / len(codes)


def all_answers(proxy):
    return np.concatenate([proxy.answers(own) for own in COMPILED.workload.blocks])


def codes_of(rows):
    places = ({str(a): a for a in range(6)}, "abcde", "nesw", "FM")
    index = [own if isinstance(own, dict) else {c: k for k, c in enumerate(own)} for own in places]
    return np.array([[own[text] for own, text in zip(index, row, strict=True)] for row in rows])


def test_a_public_file_is_counted_and_scaled_to_the_declared_rows(small):
    rows = records(1500, seed=3)
    proxy = proxy_for(Path("public.csv"), SPEC_READ, COMPILED, rows=2000)
    assert (proxy.words, proxy.records, proxy.rows) == ("the public file public.csv", 1500, 2000)
    assert np.abs(all_answers(proxy) - answers_of(codes_of(rows), 2000)).max() <= 0.5


def test_whose_the_public_rows_are_plays_no_part(small):
    text = SPEC.replace("unit: row", "unit: {person: name, max_rows: 2}")
    spec = parse(text, name="w.yaml", files={})
    proxy = proxy_for(Path("public.csv"), spec, compile_spec(spec), rows=1500)
    assert proxy.records == 1500


def test_the_default_prior_is_skewed_hangs_together_and_is_always_the_same():
    codes = sample_prior((100, 7, 2, 16), records=20_000)
    assert np.array_equal(codes, sample_prior((100, 7, 2, 16), records=20_000))
    assert (codes.min(axis=0) == 0).all()
    assert (codes.max(axis=0) == [99, 6, 1, 15]).all()
    assert np.bincount(codes[:, 1]).max() > 1.5 * 20_000 / 7
    together = np.zeros((7, 2))
    np.add.at(together, (codes[:, 1], codes[:, 2]), 1)
    alone = np.outer(together.sum(1), together.sum(0)) / 20_000
    assert np.square(together - alone).sum() > 20 * alone.sum()
    proxy = proxy_for(None, SPEC_READ, COMPILED, rows=2000)
    assert proxy.words == "the default prior"
    drawn = sample_prior(SPEC_READ.domain.shape, records=2000)
    assert np.array_equal(all_answers(proxy), answers_of(drawn, 2000))


def test_more_rows_than_are_drawn_are_scaled_to():
    proxy = proxy_for(None, SPEC_READ, COMPILED, rows=10_000_000)
    assert proxy.records == 200_000
    assert proxy.answers(COMPILED.workload.blocks[0]).sum() == 10_000_000


def test_classes_of_codes_are_counted_as_one():
    text = SPEC.replace("marginals: {ways: 2}", "product: {age: {ranges: [[0, 2], [3, 5]]}}")
    spec = parse(text, name="w.yaml", files={})
    compiled = compile_spec(spec)
    assert compiled.workload.shape_of_domain == (2, 1, 1, 1)
    proxy = proxy_for(None, spec, compiled, rows=2000)
    drawn = sample_prior(spec.domain.shape, records=2000)
    young = int((drawn[:, 0] <= 2).sum())
    assert proxy.answers(compiled.workload.blocks[0]).tolist() == [young, 2000 - young]


BAD_PROXIES = {
    "other columns": ("age,job,sex\n1,a,F\n", "declared columns exactly once: region"),
    "a column twice": ("age,job,region,sex,sex\n", "declared columns exactly once: sex"),
    "no header": ("", "the first line is not a header"),
    "no records": ("age,job,region,sex\n", "no record inside the declared domain"),
    "records outside": ("age,job,region,sex\n99,x,y,z\n", "no record inside the declared domain"),
}


@pytest.mark.parametrize("bad", BAD_PROXIES)
def test_a_bad_proxy_is_refused_by_name(small, bad):
    text, message = BAD_PROXIES[bad]
    Path("bad.csv").write_text(text)
    found = refused("plan", "workload.yaml", "--proxy", "bad.csv", code=2)
    assert message in found
    assert "the proxy bad.csv" in found


def test_a_proxy_that_is_not_there_is_refused(small):
    assert "nowhere.csv" in refused("plan", "workload.yaml", "--proxy", "nowhere.csv", code=2)
    Path("folder").mkdir()
    assert "is not a release" in refused("plan", "workload.yaml", "--proxy", "folder", code=2)


@pytest.fixture
def released(small):
    """A linear release of 3,000 records of the same town, with hardly any noise."""
    write_csv(Path("data.csv"), records(3000, seed=5))
    ok("plan", "workload.yaml", "--mechanism", "linear")
    ok("release", "data.csv", "--epsilon", "10")
    return Path("release")


def test_an_earlier_release_stands_in_for_the_data(released):
    proxy = proxy_for(released, SPEC_READ, COMPILED, rows=20_000)
    assert proxy.words == "the release release"
    true = answers_of(codes_of(records(3000, seed=5)), 20_000)
    found = all_answers(proxy)
    sizes = np.cumsum([own.queries for own in COMPILED.workload.blocks])[:-1]
    # Pairs that the tree of tables holds are met; the others are as it makes them, and not far off.
    distances = [
        np.abs(own - other).sum() / 20_000
        for own, other in zip(np.split(found, sizes), np.split(true, sizes), strict=True)
    ]
    assert sorted(distances)[2] < 0.1
    assert max(distances) < 0.4
    rap = plan("--epsilon", "0.01", "--proxy", "release")["rap"]
    assert rap["proxy"] == "the release release"
    assert rap["preferred"] is True


def test_relaxed_rows_of_an_earlier_release_stand_in_for_the_data(released):
    shape = COMPILED.workload.shape_of_domain
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.dirichlet(np.full(n, 0.3), 40) for n in shape], axis=1)
    rows = RelaxedRows(shape, values.astype(np.float32))
    table = relaxed_table(rows, SPEC_READ.domain, COMPILED.classes)
    pq.write_table(table, released / RELAXED_ROWS_FILE)
    proxy = proxy_for(released, SPEC_READ, COMPILED, rows=100_000)
    for block in COMPILED.workload.blocks:
        expected = 100_000 * np.asarray(rows.answer(block)).ravel()
        assert np.abs(proxy.answers(block) - expected).max() < 6 * np.sqrt(expected.max())


def test_a_release_of_another_domain_is_refused_by_its_attributes(released):
    changed = SPEC.replace("[n, e, s, w]", "[n, e, s]").replace("sex:", "gender:")
    Path("workload.yaml").write_text(changed)
    message = refused("plan", "workload.yaml", "--proxy", "release", code=2)
    assert "does not have these attributes as the spec declares them: region, gender" in message


def test_a_damaged_release_is_no_proxy(released):
    (released / "pairs.parquet").write_bytes(b"PAR1")
    message = refused("plan", "workload.yaml", "--proxy", "release", code=2)
    assert "pairs.parquet is missing or not as it was written" in message
    (released / "release.plan").unlink()
    assert "has no release.plan" in refused("plan", "workload.yaml", "--proxy", "release", code=2)


def values_of(predicates, counts):
    spec = parse(SPEC[: SPEC.index("workload:")] + predicates, name="w.yaml", files={})
    (table,) = spec.items[0].tables
    true = compile_spec(spec).workload.blocks[0].apply(counts)
    return proxy_release._every_value(table, true.ravel().astype(float))


@pytest.mark.parametrize(
    ("predicates", "subset"),
    [
        ("{age: identity, job: identity}", (0, 1)),
        ("{age: prefix, job: identity+total}", (0, 1)),
        ("{age: total, job: [total, identity]}", (1,)),
        ("{age: all-ranges, job: identity}", ()),
        ("{age: {width: 2}, job: identity}", ()),
    ],
)
def test_tables_of_every_value_are_found_in_what_was_released(predicates, subset):
    counts = np.random.default_rng(0).integers(0, 50, (6, 5))
    item = f"workload:\n  - {{name: it, product: {predicates}}}\n"
    if subset == (1,):
        counts = counts[:1].sum(axis=0)
    found, table = values_of(item, counts)
    assert found == subset
    if subset:
        assert np.array_equal(table, counts)


# The figures of both sides.


def test_the_linear_figures_are_those_of_the_better_selection(small):
    found = plan("--epsilon", "10")
    (best,) = [o for o in found["selections"] if o["noise"] == found["chosen"]["noise"]]
    own = next(o for o in best["candidates"] if o["name"] == best["best"])
    assert found["rap"]["linear_rmse"] == pytest.approx(own["weighted_rmse"])
    assert found["rap"]["linear_max_error"] > own["max_std_error"]


def test_the_errors_are_weighted_as_the_workload_weighs_them(small):
    blocks = COMPILED.workload.blocks
    weights = tuple(float(k + 1) for k in range(len(blocks)))
    workload = dataclasses.replace(COMPILED.workload, weights=weights)
    compiled = dataclasses.replace(COMPILED, workload=workload)
    stage = stage_for(
        SPEC_READ,
        compiled,
        Wanted(),
        epsilon=Fraction(1),
        delta=Fraction(1, 10**9),
        targets=False,
    )
    seen = []

    class Seen(Learner):
        def __init__(self, *given):
            super().__init__(*given)
            seen.append(self)

    rehearsal.RapProjection = Seen  # the fixture puts it back
    run = rehearsal.rehearse(stage, RapSettings(2, 5, 10, 0), repetitions=1).runs[0]
    errors = [seen[0].answers(k) - stage.proxy.answers(own) for k, own in enumerate(blocks)]
    total = sum(w * np.square(e).sum() for w, e in zip(weights, errors, strict=True))
    count = sum(w * e.size for w, e in zip(weights, errors, strict=True))
    assert run.rmse == pytest.approx(math.sqrt(total / count))
    assert run.largest == pytest.approx(max(np.abs(e).max() for e in errors))


def test_the_rule_measures_more_where_there_is_more_signal():
    def measured(epsilon):
        own = default_settings(rho=epsilon**2 / 90, rows=50_000, queries=10**7)
        return own.rounds * own.selected

    counts = [measured(own) for own in (0.001, 0.01, 0.1, 1, 10)]
    assert counts == sorted(counts)
    assert counts[0] >= 8
    few = default_settings(rho=1.0, rows=50_000, queries=20)
    assert not few.adaptive


# Records drawn from tables.


def test_records_follow_the_tables_they_are_drawn_from():
    rng = np.random.default_rng(0)
    joint = rng.random((3, 4, 2)) ** 3
    pair, other = joint.sum(axis=2), joint.sum(axis=0)
    drawn = sample_tables((3, 4, 2, 5), [((0, 1), pair), ((1, 2), other)], records=200_000)
    found = np.zeros((3, 4, 2, 5))
    np.add.at(found, tuple(drawn.T), 1 / 200_000)
    assert found.sum(axis=(2, 3)) == pytest.approx(pair / pair.sum(), abs=0.005)
    assert found.sum(axis=(0, 3)) == pytest.approx(other / other.sum(), abs=0.005)
    assert found.sum(axis=(0, 1, 2)) == pytest.approx(np.full(5, 0.2), abs=0.005)


def test_records_follow_relaxed_rows_and_classes_are_spread_over_their_codes():
    first = np.array([[1.0, 0.0], [0.25, 0.75]])
    second = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    drawn = sample_rows([first, second], records=100_000)
    found = np.zeros((2, 3))
    np.add.at(found, tuple(drawn.T), 1 / 100_000)
    expected = (np.outer(first[0], second[0]) + np.outer(first[1], second[1])) / 2
    assert found == pytest.approx(expected, abs=0.01)
    codes = spread(drawn[:, 0], np.array([0, 1, 0, 1, 1]))
    shares = np.bincount(codes, minlength=5) / 100_000
    assert shares == pytest.approx([5 / 16, 1 / 8, 5 / 16, 1 / 8, 1 / 8], abs=0.01)


# The plan file.


def test_a_plan_with_a_rehearsal_is_read_as_it_was_written(town):
    plain = read_plan(Path("dpquery.plan").read_bytes())
    assert plain.relaxed is None
    assert b"relaxed" not in write_plan(plain)
    written = write_plan(dataclasses.replace(plain, relaxed=REHEARSED))
    assert read_plan(written).relaxed == REHEARSED
    assert write_plan(read_plan(written)) == written


HOSTILE = {
    "no mapping": None,
    "a list": [],
    "nothing": {},
    "an epsilon of nothing": {"epsilon": "0"},
    "an epsilon below zero": {"epsilon": "-1"},
    "an epsilon past all use": {"epsilon": "10000001"},
    "an epsilon over zero": {"epsilon": "1/0"},
    "an epsilon too long to read": {"epsilon": "1" * 1001},
    "an epsilon that is no text": {"epsilon": 1},
    "a delta of zero": {"delta": "0"},
    "a delta of one": {"delta": "1"},
    "no delta": {"delta": None},
    "no repetitions": {"repetitions": 0},
    "half a repetition": {"repetitions": 0.5},
    "an error below zero": {"rmse": -1.0},
    "an error without end": {"max_error": float("inf")},
    "an error that is no number": {"linear_rmse": float("nan")},
    "an error in words": {"linear_max_error": "10"},
    "a preference in words": {"preferred": "yes"},
    "a preference of one": {"preferred": 1},
    "half a character": {"proxy": "\ud800"},
    "no settings": {"settings": None},
    "settings of no rounds": {"settings": {"rounds": 0}},
    "endless settings": {
        "settings": {"rounds": 1000, "selected": 2**39, "relaxed_rows": 1, "seed": 0}
    },
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_rehearsal_is_refused_before_anything_is_charged(town, hostile):
    plan = read_plan(Path("dpquery.plan").read_bytes())
    raw = json.loads(write_plan(dataclasses.replace(plan, relaxed=REHEARSED)))
    own = HOSTILE[hostile]
    raw["relaxed"] = raw["relaxed"] | own if own else own
    Path("dpquery.plan").write_text(json.dumps(raw))
    assert "plan" in refused("release", "data.csv", "--epsilon", "1", code=2)
    assert kinds() == ["register"]
