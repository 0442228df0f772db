"""A rehearsal is the curator's own loop on public data: a file, a release, or the prior."""

import dataclasses
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rounds import (
    COMPILED,
    REHEARSAL_SPEC,
    SPEC_READ,
    Learner,
    plan,
    records,
    relaxed_of,
    write_records,
)
from town import ok, refused

from dpquery.exceptions import OutOfTimeError
from dpquery.measurement.rounds.queries import rap_rounds
from dpquery.measurement.rounds.run import STEPS
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.rehearsals import RapSettings, default_settings
from dpquery.planning.compare_mechanisms import ColumnRehearsal, MechanismRequest, stages_for
from dpquery.planning.rehearsal import populations
from dpquery.planning.rehearsal import runs as simulated_runs
from dpquery.planning.rehearsal.populations import (
    proxies_for,
    sample_prior,
    sample_rows,
    sample_tables,
    spread,
)
from dpquery.planning.rehearsal.runs import SeededChance
from dpquery.spec.parsing.read import parse


def stage_of(compiled=COMPILED, *, epsilon=Fraction(1)):
    terms = {"epsilon": epsilon, "delta": Fraction(1, 10**9), "targets": ((), ())}
    return stages_for(SPEC_READ, compiled, MechanismRequest(), **terms)[1]


@pytest.fixture
def stage():
    return stage_of()


def test_of_a_mechanism_that_was_asked_for_the_first_run_is_finished_once(stage, monkeypatch):
    limited, ends = dataclasses.replace(stage, end=-1.0), []

    def run(stage, settings, seed):
        ends.append(stage.end)
        simulated_runs.check_time(stage.end)
        return simulated_runs.Errors(1.0, 1.0)

    monkeypatch.setattr(simulated_runs, "_run", run)
    with pytest.raises(OutOfTimeError):
        simulated_runs.rehearse(limited, None, seeds=range(3))
    done = simulated_runs.rehearse(limited, None, seeds=range(3), first_always=True)
    assert ends == [-1.0, math.inf, -1.0]
    assert len(done.runs) == 1
    assert done.stopped


@pytest.mark.parametrize(("errors", "runs"), [((2.0,), 1), ((1.0, 2.0), 2), ((1.0, 1.0, 2.0), 3)])
def test_what_has_lost_already_is_not_run_again(stage, monkeypatch, errors, runs):
    def run(stage, settings, seed):
        return simulated_runs.Errors(errors[seed], 1.0)

    monkeypatch.setattr(simulated_runs, "_run", run)
    done = simulated_runs.rehearse(stage, None, seeds=range(3), lost=1.25)
    assert (len(done.runs), done.stopped) == (runs, False)


@pytest.mark.parametrize("start", [(16, 1), (1, 1), (8, 8), (4, 20)])
@pytest.mark.parametrize("objective", ["rmse", "max"])
def test_the_search_goes_down_the_valley_and_along_it(stage, monkeypatch, start, objective):
    tried = []

    def valley(stage, settings, *, seeds):
        tried.append(settings)
        T, K = settings.rounds, settings.selected
        error = 1 + math.log2(T * K / 16) ** 2 + 0.1 * math.log2(T / 8) ** 2
        return simulated_runs.Rehearsed(
            settings, (simulated_runs.Errors(error, error),), stopped=False
        )

    monkeypatch.setattr(simulated_runs, "rehearse", valley)
    best, finished = simulated_runs.search(stage, RapSettings(*start, 10, 0), objective=objective)
    assert finished
    assert best.rounds * best.selected in (16, 20)
    assert len(tried) <= 12


def test_a_search_that_is_out_of_time_keeps_the_best_found(stage, monkeypatch):
    def slow(stage, settings, *, seeds):
        if settings.selected > 4:
            raise OutOfTimeError("no")
        return simulated_runs.Rehearsed(settings, (simulated_runs.Errors(1.0, 1.0),), stopped=False)

    monkeypatch.setattr(simulated_runs, "rehearse", slow)
    start = RapSettings(2, 4, 10, 0)
    assert simulated_runs.search(stage, start, objective="rmse") == (start, False)


@pytest.fixture
def searched(small, monkeypatch):
    """What plan makes of a search that found settings of some error by the seeds of their runs."""

    monkeypatch.setattr(MechanismRequest, "compared", ("rap",))

    def planned(errors, *arguments):
        """The plan, and the seeds of every rehearsal; `errors` are of the rule's and the found."""
        chosen, used = RapSettings(3, 7, 10, 0), []

        def rehearse(stage, settings, *, seeds):
            used.append((settings == chosen, list(seeds)))
            simulated = errors[settings == chosen]
            if simulated is None:
                raise OutOfTimeError("not finished")
            runs = tuple(simulated_runs.Errors(simulated, 10 * simulated) for _ in seeds)
            return simulated_runs.Rehearsed(settings, runs, stopped=False)

        monkeypatch.setattr("dpquery.planning.compare_mechanisms.rehearse", rehearse)
        monkeypatch.setattr(
            "dpquery.planning.compare_mechanisms.search", lambda *_, **__: (chosen, True)
        )
        return plan("--epsilon", "1", "--rap-search", *arguments), chosen, used

    return planned


@pytest.mark.nightly
@pytest.mark.parametrize("objective", ["rmse", "max"])
def test_what_a_search_found_is_kept_only_where_it_beats_the_rule_in_other_runs(
    searched, objective
):
    for errors, is_kept in (((2.0, 1.0), True), ((1.0, 2.0), False)):
        seen, chosen, used = searched(errors, "--objective", objective)
        assert (seen["rap"]["settings"] == vars(chosen)) is is_kept
        assert seen["rap"]["rmse"] == 1.0
        assert used == [(False, [0, 1, 2]), (True, [0, 1, 2])]
        assert "remark" not in seen


@pytest.mark.nightly
def test_a_search_and_what_judges_it_never_share_a_run(small, monkeypatch):
    real, used = simulated_runs._run, {}

    def run(stage, settings, seed):
        if settings is not None:  # of RAP
            used.setdefault(seed, set()).add(settings)
        return real(stage, settings, seed)

    monkeypatch.setattr(simulated_runs, "_run", run)
    seen = plan("--epsilon", "1", "--rap-search")["rap"]
    assert set(used) == {0, 1, 2, simulated_runs.SEARCH_SEED}
    assert len(used[0]) <= 2 < len(used[simulated_runs.SEARCH_SEED])
    assert RapSettings(**seen["settings"]) in used[0]


def test_the_errors_are_weighted_as_the_workload_weighs_them(small):
    blocks = COMPILED.workload.blocks
    weights = tuple(float(k + 1) for k in range(len(blocks)))
    workload = dataclasses.replace(COMPILED.workload, weights=weights)
    compiled = dataclasses.replace(COMPILED, workload=workload)
    stage = stage_of(compiled)
    seen = []

    class Seen(Learner):
        def __init__(self, *given):
            super().__init__(*given)
            seen.append(self)

    simulated_runs.RapProjection = Seen  # the fixture puts it back
    run = simulated_runs.rehearse(stage, RapSettings(2, 5, 10, 0), seeds=[0]).runs[0]
    errors = [
        seen[0].answers(k) - stage.proxies[0].answers(block) for k, block in enumerate(blocks)
    ]
    total = sum(w * np.square(e).sum() for w, e in zip(weights, errors, strict=True))
    count = sum(w * e.size for w, e in zip(weights, errors, strict=True))
    assert run.rmse == pytest.approx(math.sqrt(total / count))
    assert run.largest == pytest.approx(max(np.abs(e).max() for e in errors))


def test_a_rehearsal_scales_its_answers_to_the_total_that_a_release_would(small):
    stage = stage_of(epsilon=Fraction(1, 10_000))
    totals, settings = [], RapSettings(2, 5, 10, 0)

    def seen(workload, settings, total):
        totals.append(total)
        return Learner(workload, settings, total)

    simulated_runs.RapProjection = seen  # the fixture puts it back
    simulated_runs.rehearse(stage, settings, seeds=[0])
    rounds = rap_rounds(
        COMPILED.workload,
        settings,
        privacy=SPEC_READ.privacy,
        guarantee=stage.guarantee,
        rows=stage.rows,
    )
    first = rounds.first(lambda _: np.array([2000]), SeededChance(0))
    assert abs(first[0] / STEPS - 2000) > 2000
    assert totals == [rounds.decoded([first]).total]
    assert totals[0] == pytest.approx(2000, rel=0.05)


def test_the_rule_measures_more_where_there_is_more_signal():
    def measured(epsilon):
        settings = default_settings(rho=epsilon**2 / 90, rows=50_000, queries=10**7)
        return settings.rounds * settings.selected

    counts = [measured(epsilon) for epsilon in (0.001, 0.01, 0.1, 1, 10)]
    assert counts == sorted(counts)
    assert counts[0] >= 8
    few = default_settings(rho=1.0, rows=50_000, queries=20)
    assert not few.adaptive


# What stands in for the data is public: a file, an earlier release, or the default prior.


def answers_of(codes, rows):
    """The dense twin: count the codes of every cell, and ask the workload of them."""
    x = np.zeros(SPEC_READ.domain.shape)
    np.add.at(x, tuple(codes.T), 1)
    return COMPILED.workload.matvec(x.ravel()) * rows / len(codes)


def all_answers(proxy):
    return np.concatenate([proxy.answers(block) for block in COMPILED.workload.blocks])


def codes_of(rows):
    places = ({str(a): a for a in range(6)}, "abcde", "nesw", "FM")
    index = [
        codes if isinstance(codes, dict) else {c: k for k, c in enumerate(codes)}
        for codes in places
    ]
    return np.array([[codes[text] for codes, text in zip(index, row, strict=True)] for row in rows])


def test_a_public_file_is_counted_and_scaled_to_the_declared_rows(small):
    rows = records(1500, seed=3)
    proxy, *_ = proxies_for(Path("public.csv"), SPEC_READ, COMPILED, rows=2000)
    assert (proxy.words, proxy.records, proxy.rows) == ("the public file public.csv", 1500, 2000)
    assert np.abs(all_answers(proxy) - answers_of(codes_of(rows), 2000)).max() <= 0.5


def test_whose_the_public_rows_are_plays_no_part(small):
    text = REHEARSAL_SPEC.replace("unit: row", "unit: {person: name, max_rows: 2}")
    spec = parse(text, name="w.yaml", files={})
    proxy, *_ = proxies_for(Path("public.csv"), spec, compile_spec(spec), rows=1500)
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
    proxy, *_ = proxies_for(None, SPEC_READ, COMPILED, rows=2000)
    assert proxy.words == "a made-up population"
    drawn = sample_prior(SPEC_READ.domain.shape, records=2000)
    assert np.array_equal(all_answers(proxy), answers_of(drawn, 2000))


def test_more_rows_than_are_drawn_are_scaled_to():
    proxy, *_ = proxies_for(None, SPEC_READ, COMPILED, rows=10_000_000)
    assert proxy.records == 200_000
    assert proxy.answers(COMPILED.workload.blocks[0]).sum() == 10_000_000


def test_classes_of_codes_are_counted_as_one():
    text = REHEARSAL_SPEC.replace(
        "marginals: {ways: 2}", "product: {age: {ranges: [[0, 2], [3, 5]]}}"
    )
    spec = parse(text, name="w.yaml", files={})
    compiled = compile_spec(spec)
    assert compiled.workload.shape_of_domain == (2, 1, 1, 1)
    proxy, *_ = proxies_for(None, spec, compiled, rows=2000)
    drawn = sample_prior(spec.domain.shape, records=2000)
    young = int((drawn[:, 0] <= 2).sum())
    assert proxy.answers(compiled.workload.blocks[0]).tolist() == [young, 2000 - young]


BAD_PROXIES = {
    "other columns": ("age,job,sex\n1,a,F\n", "lacks the declared column region;"),
    "a column twice": ("age,job,region,sex,sex\n", "has the declared column sex more than once;"),
    "nothing": ("", "is empty: no header and no record; name another file"),
    "no records": ("age,job,region,sex\n", "no record inside the declared domain"),
    "records outside": ("age,job,region,sex\n99,x,y,z\n", "no record inside the declared domain"),
}


@pytest.mark.parametrize("bad", BAD_PROXIES)
def test_a_bad_proxy_is_refused_by_name(small, bad):
    text, message = BAD_PROXIES[bad]
    Path("bad.csv").write_text(text)
    said = refused("plan", "workload.yaml", "--proxy", "bad.csv", code=2)
    assert message in said
    assert re.search("the proxy (cannot be read: )?bad.csv", said)


def test_a_proxy_that_is_not_there_is_refused(small):
    assert "nowhere.csv" in refused("plan", "workload.yaml", "--proxy", "nowhere.csv", code=2)
    Path("folder").mkdir()
    assert "is not a release" in refused("plan", "workload.yaml", "--proxy", "folder", code=2)


def test_a_file_s_name_is_one_line_that_no_terminal_obeys(small):
    name = "a\x1b[31m\u202e<b>\nc.csv"
    Path("public.csv").rename(name)
    proxy, *_ = proxies_for(Path(name), SPEC_READ, COMPILED, rows=1500)
    assert proxy.words == "the public file a[31m<b> c.csv"


@pytest.fixture(autouse=True)
def estimates_alone(monkeypatch):
    """RAP is set beside the estimates."""
    monkeypatch.setattr(
        ColumnRehearsal, "compared", lambda self, plan, selections, reported: reported(plan)
    )


@pytest.fixture
def released(small):
    """A linear release of 3,000 records of the same town, with hardly any noise."""
    write_records(Path("data.csv"), records(3000, seed=5))
    in_rho = REHEARSAL_SPEC.replace(
        "20, delta: 1e-9", "20, delta: 1e-9, accounting: zcdp"
    )  # as RAP is
    Path("workload.yaml").write_text(in_rho)
    ok("plan", "workload.yaml", "--mechanism", "linear")
    ok("release", "data.csv", "--epsilon", "10")
    return Path("release")


def test_an_earlier_release_stands_in_for_the_data(released):
    proxy, *_ = proxies_for(released, SPEC_READ, COMPILED, rows=20_000)
    assert proxy.words == "the release in release/"
    true = answers_of(codes_of(records(3000, seed=5)), 20_000)
    answers = all_answers(proxy)
    sizes = np.cumsum([block.queries for block in COMPILED.workload.blocks])[:-1]
    # Pairs that the tree of tables holds are met; the others are as it makes them, and not far off.
    distances = [
        np.abs(part - other).sum() / 20_000
        for part, other in zip(np.split(answers, sizes), np.split(true, sizes), strict=True)
    ]
    assert sorted(distances)[2] < 0.1
    assert max(distances) < 0.4
    fit = plan("--epsilon", "0.01", "--proxy", "release")["adaptive"]
    assert fit["proxy"] == "the release in release/"  # what it prefers depends on its noise


def test_relaxed_rows_of_an_earlier_release_stand_in_for_the_data(small):
    write_records(Path("data.csv"), records(3000, seed=5))
    plan("--mechanism", "rap", "--epsilon", "1", "--proxy", "public.csv")
    ok("release", "data.csv", "--epsilon", "1")
    rows = relaxed_of(Path("release"), COMPILED)
    proxy, *_ = proxies_for(Path("release"), SPEC_READ, COMPILED, rows=100_000)
    for block in COMPILED.workload.blocks:
        expected = 100_000 * np.asarray(rows.answer(block)).ravel()
        assert np.abs(proxy.answers(block) - expected).max() < 6 * np.sqrt(expected.max())


def test_a_release_of_another_domain_is_refused_by_its_attributes(released):
    changed = REHEARSAL_SPEC.replace("[n, e, s, w]", "[n, e, s]").replace("sex:", "gender:")
    Path("workload.yaml").write_text(changed)
    message = refused("plan", "workload.yaml", "--proxy", "release", code=2)
    assert "does not have these attributes as the spec declares them: region, gender" in message


def test_answers_are_no_proxy(released):
    Path("more.yaml").write_text("workload: [{name: all, product: {}}]")
    ok("answer", "release", "more.yaml")
    message = refused("plan", "workload.yaml", "--proxy", "answers", code=2)
    assert "holds answers to questions; name the release itself" in message


def test_a_damaged_release_is_no_proxy(released, monkeypatch):
    (released / "kept.parquet").write_bytes((released / "pairs.parquet").read_bytes())
    (released / "pairs.parquet").write_bytes(b"PAR1")
    message = refused("plan", "workload.yaml", "--proxy", "release", code=2)
    assert "pairs.parquet is missing or not as it was written" in message
    table = pq.read_table(released / "kept.parquet")
    pq.write_table(pa.concat_tables([table, table]), released / "pairs.parquet")
    with monkeypatch.context() as patched:
        patched.setattr(pq, "read_table", lambda *_, **__: pytest.fail("read"))
        message = refused("plan", "workload.yaml", "--proxy", "release", code=2)
    assert "pairs.parquet is missing or not as it was written" in message
    (released / "release.plan").unlink()
    assert "has no release.plan" in refused("plan", "workload.yaml", "--proxy", "release", code=2)


@pytest.mark.nightly
def test_what_a_release_holds_no_table_of_is_of_the_default_prior(small):
    """Made up flat, it would be what relaxed rows start from: RAP would seem to make no error."""
    text = REHEARSAL_SPEC.replace(
        "20, delta: 1e-9", "20, delta: 1e-9, accounting: zcdp"
    )  # as RAP is
    later = """\
  - {name: ages, marginals: {sets: [[age, job], [region]]}}
  - {name: either, threshold: {r: 1, of: [region, sex]}}
"""
    Path("workload.yaml").write_text(text[: text.index("  - name: pairs")] + later)
    write_records(Path("data.csv"), records(3000, seed=5))
    ok("plan", "workload.yaml", "--mechanism", "linear")
    ok("release", "data.csv", "--epsilon", "10")
    words = "the release in release/, with the default prior for sex"
    assert plan("--proxy", "release")["adaptive"]["proxy"] == words
    codes, made_up = populations.draw_records(Path("release"), SPEC_READ, records=2000)
    assert made_up == ("sex",)
    assert np.array_equal(codes[:, 3], sample_prior(SPEC_READ.domain.shape, records=2000)[:, 3])
    true = np.bincount(codes_of(records(3000, seed=5))[:, 2], minlength=4) / 3000
    assert np.abs(np.bincount(codes[:, 2], minlength=4) / 2000 - true).max() < 0.05


def values_of(predicates, counts):
    spec = parse(
        REHEARSAL_SPEC[: REHEARSAL_SPEC.index("workload:")] + predicates, name="w.yaml", files={}
    )
    (table,) = spec.items[0].tables
    true = compile_spec(spec).workload.blocks[0].apply(counts)
    return populations._every_value(table, true.ravel().astype(float))


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
    values, table = values_of(item, counts)
    assert values == subset
    if subset:
        assert np.array_equal(table, counts)


def test_records_follow_the_tables_they_are_drawn_from():
    rng = np.random.default_rng(0)
    joint = rng.random((3, 4, 2)) ** 3
    pair, other = joint.sum(axis=2), joint.sum(axis=0)
    drawn = sample_tables((3, 4, 2, 5), [((0, 1), pair), ((1, 2), other)], records=200_000)
    counts = np.zeros((3, 4, 2, 5))
    np.add.at(counts, tuple(drawn.T), 1 / 200_000)
    assert counts.sum(axis=(2, 3)) == pytest.approx(pair / pair.sum(), abs=0.005)
    assert counts.sum(axis=(0, 3)) == pytest.approx(other / other.sum(), abs=0.005)
    prior = np.bincount(sample_prior((3, 4, 2, 5), records=200_000)[:, 3]) / 200_000
    assert counts.sum(axis=(0, 1, 2)) == pytest.approx(prior, abs=0.005)


def test_records_follow_relaxed_rows_and_classes_are_spread_over_their_codes():
    first = np.array([[1.0, 0.0], [0.25, 0.75]])
    second = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    drawn = sample_rows([first, second], records=100_000)
    masses = np.zeros((2, 3))
    np.add.at(masses, tuple(drawn.T), 1 / 100_000)
    expected = (np.outer(first[0], second[0]) + np.outer(first[1], second[1])) / 2
    assert masses == pytest.approx(expected, abs=0.01)
    codes = spread(drawn[:, 0], np.array([0, 1, 0, 1, 1]))
    shares = np.bincount(codes, minlength=5) / 100_000
    assert shares == pytest.approx([5 / 16, 1 / 8, 5 / 16, 1 / 8, 1 / 8], abs=0.01)
