"""The audit passes on sound code and sees each planted mistake, in the part that should see it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from town import ok, refused, run, spent

from dpquery.audit import end_to_end, planned_cases
from dpquery.audit import run as audit_run
from dpquery.audit.cases import CASES, QUICK, Size
from dpquery.audit.end_to_end import rows_of_persons, shown_loss, two_processes
from dpquery.audit.planned_cases import planned_case
from dpquery.audit.statistics import ALPHA, MOST_TESTS, Finding
from dpquery.exceptions import SpecError
from dpquery.measurement import curator
from dpquery.measurement.counting import tally
from dpquery.measurement.discovery import least_threshold
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.noise import calibration
from dpquery.measurement.noise import exact_noise as noise_module

CASE = {case.name: case for case in CASES}
ROWS, PERSONS = CASE["marginals of rows"], CASE["residuals of persons"]
REPLACED = CASE["two of three, in exchange for another record"]
FEW = Size(draws=5_000, replicates=300, releases=12, quick=True)
MANY = Size(draws=20_000, replicates=2_500, releases=8, quick=True)


@pytest.fixture
def only(monkeypatch):
    """Return the function that runs one part on one case."""

    def run_part(part, case, size=FEW):
        monkeypatch.setattr(planned_cases, "CASES", (replace(case, quick=True),))
        return list(audit_run.PARTS[part](replace(size)))

    return run_part


def failed(findings):
    return [finding for finding in findings if not finding.passed]


def noise_of(answers, **terms):
    """The noise alone; what is drawn in place would overwrite the answers."""
    return noise_module.draw(answers, **(terms | {"out": None})) - answers


def scaled(factor):
    def draw(answers, **terms):
        return answers + np.rint(factor * noise_of(answers, **terms)).astype(np.int64)

    return draw


def one_row_exact(answers, **terms):
    noise = noise_of(answers, **terms)
    noise[4] = 0
    return answers + noise


def shared(answers, **terms):
    return answers + noise_of(answers[:1], **terms)


def mirrored(answers, **terms):
    noise = noise_of(answers, **terms)
    noise[1] = -noise[0]
    return answers + noise


def seeded(answers, *, scale, **_):
    rng = np.random.default_rng(len(answers))
    return answers + np.rint(rng.normal(0, scale, len(answers))).astype(np.int64)


def drawn_for_pairs(answers, **terms):
    """Each noise vector serves two releases."""
    stored = drawn_for_pairs.__dict__.setdefault("stored", [])
    noise = stored.pop() if stored else noise_of(answers, **terms)
    if not drawn_for_pairs.__dict__.pop("second", False):
        stored.append(noise)
        drawn_for_pairs.__dict__["second"] = True
    return answers + noise


NOISES = [
    (one_row_exact, "residuals", FEW),
    (one_row_exact, "independence", FEW),
    (shared, "independence", FEW),
    (seeded, "independence", FEW),
    (mirrored, "independence", FEW),
    (drawn_for_pairs, "independence", FEW),
    (seeded, "residuals", FEW),
    (scaled(0.95), "residuals", MANY),
    (scaled(1.05), "residuals", MANY),
    (scaled(0.5), "neighbours", MANY),
]


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(("draw", "part", "size"), NOISES)
def test_noise_that_is_not_what_it_should_be_is_seen(draw, part, size, only, monkeypatch):
    monkeypatch.setattr(curator, "draw", draw)
    assert failed(only(part, PERSONS, size))


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize(
    "case",
    [ROWS, *(pytest.param(case, marks=pytest.mark.slow) for case in (PERSONS, REPLACED))],
    ids=lambda case: case.name,
)
def test_sound_code_passes(case, monkeypatch, record_property):
    monkeypatch.setattr(planned_cases, "CASES", (replace(case, quick=True),))
    size = replace(FEW)
    parts = ("lattice", "residuals", "independence", "neighbours")
    findings = [finding for part in parts for finding in audit_run.PARTS[part](size)]
    assert not failed(findings)
    record_property("draws", sum(finding.draws for finding in findings))
    record_property("neighbours", sum(finding.neighbours for finding in findings))


DISCOVERY = "dpquery.measurement.discovery"
MISTAKEN = {
    "a threshold one too low": (
        f"{DISCOVERY}.least_threshold",
        lambda *given, **terms: least_threshold(*given, **terms) - 1,
    ),
    "true numbers": (f"{DISCOVERY}.draw", lambda answers, **_: answers),
    "noise 20 % too small": (f"{DISCOVERY}.draw", scaled(0.8)),
}


@pytest.mark.statistical
def test_discoveries_pass_and_mistakes_in_them_are_seen(monkeypatch):
    assert not failed(audit_run.PARTS["discoveries"](QUICK))
    for name, (place, mistake) in MISTAKEN.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, mistake)
            assert failed(audit_run.PARTS["discoveries"](QUICK)), name


def float_noise(answers, *, scale, budget, **_):
    rng = np.random.default_rng()
    law = rng.laplace if budget.law.noise == "laplace" else rng.normal
    return answers + np.rint(law(0, scale, answers.size)).astype(np.int64)


@pytest.mark.statistical
def test_float_noise_is_seen_where_the_grid_is_coarse(monkeypatch):
    monkeypatch.setattr("dpquery.audit.installation.draw", float_noise)
    failures = failed(audit_run.PARTS["sampler"](replace(QUICK)))
    assert len(failures) >= 4
    large = [finding for finding in failures if "999,983" in finding.subject]
    assert not large  # there the laws are one


def forget_rows_of_a_person(monkeypatch):
    monkeypatch.setattr(calibration, "steps", lambda privacy, change: 1)


def take_l2_for_l1(monkeypatch):
    real = calibration.sensitivity
    other = {
        "laplace": lambda *given: int(real(given[0], "gaussian", given[1]) ** 0.5),
        "gaussian": lambda *given: real(given[0], "gaussian", given[1]),
    }
    monkeypatch.setattr(
        calibration,
        "sensitivity",
        lambda measurements, noise, change: other[noise](measurements, change),
    )


def take_a_column_for_the_largest(monkeypatch):
    real = calibration.sensitivity
    monkeypatch.setattr(
        calibration,
        "sensitivity",
        lambda measurements, noise, change: real(measurements, noise, change) * 97 // 100,
    )


def forget_that_records_move(monkeypatch):
    real = calibration.sensitivity
    monkeypatch.setattr(
        calibration,
        "sensitivity",
        lambda measurements, noise, change: real(measurements, noise, "enters"),
    )


WIDTHS = [
    pytest.param(forget_rows_of_a_person, PERSONS, "residuals", marks=pytest.mark.slow),
    (forget_rows_of_a_person, PERSONS, "lattice"),
    pytest.param(forget_rows_of_a_person, PERSONS, "neighbours", marks=pytest.mark.slow),
    pytest.param(forget_that_records_move, REPLACED, "residuals", marks=pytest.mark.slow),
    pytest.param(take_l2_for_l1, ROWS, "residuals", marks=pytest.mark.slow),
    pytest.param(take_a_column_for_the_largest, PERSONS, "residuals", marks=pytest.mark.slow),
    (take_a_column_for_the_largest, ROWS, "lattice"),
]


@pytest.mark.nightly(daily="take_a_column_for_the_largest-case6-lattice")
@pytest.mark.statistical
@pytest.mark.parametrize(("plant", "case", "part"), WIDTHS)
def test_a_sensitivity_that_is_too_small_is_seen(plant, case, part, only, monkeypatch):
    plant(monkeypatch)
    assert failed(only(part, case, MANY if part == "neighbours" else FEW))


def answer_in_floats(monkeypatch):
    def answers(measurements, tables, *, shift, bits):
        pairs = zip(measurements, tables, strict=True)
        floats = [
            one.block.apply(table.astype(np.float64)).ravel() * float(one.weight)
            for one, table in pairs
        ]
        return np.floor(np.concatenate(floats) / 2.0**shift).astype(np.int64)

    monkeypatch.setattr(curator, "answers_alike", answers)


def gathered(kept, i):
    """Every row of a bucket stays."""
    kept._kept[i] = np.concatenate([kept._kept[i], *kept._new[i]], axis=1)
    kept._new[i], kept._waiting[i] = [], 0


def keep_all_rows(monkeypatch):
    monkeypatch.setattr(tally.KeptRows, "_cut_down", gathered)


def charge_at_the_commit(monkeypatch):
    reserve, commit, late = Ledger.reserve, Ledger.commit, {}

    def committed(self, key, values, **terms):
        reserve(self, *late[key][0], key=key, **late[key][1])
        return commit(self, key, values, **terms)

    monkeypatch.setattr(
        Ledger, "reserve", lambda self, *args, key, **terms: late.update({key: (args, terms)})
    )
    monkeypatch.setattr(
        Ledger, "draft", lambda self, key: type("None", (), {"clear": lambda s: 0})()
    )
    monkeypatch.setattr(Ledger, "commit", committed)


def charge_half(monkeypatch):
    real = curator.price_of

    def half(*args):
        price = real(*args)
        return replace(price, units=price.units // 2)

    monkeypatch.setattr(curator, "price_of", half)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "plant",
    [
        charge_at_the_commit,
        pytest.param(keep_all_rows, marks=pytest.mark.slow),
        pytest.param(answer_in_floats, marks=pytest.mark.slow),
        pytest.param(charge_half, marks=pytest.mark.slow),
    ],
)
def test_what_happens_before_the_noise_is_held_to_be_exact(plant, only, monkeypatch):
    plant(monkeypatch)
    assert failed(only("lattice", PERSONS))


@pytest.mark.nightly
@pytest.mark.statistical
def test_rows_of_a_person_that_are_the_first_of_the_file_are_seen(monkeypatch):
    assert not failed([rows_of_persons()])
    real = tally.KeptRows
    monkeypatch.setattr(tally, "KeptRows", lambda **settings: real(**settings | {"keep": "first"}))
    assert failed([rows_of_persons()])
    monkeypatch.setattr(tally, "KeptRows", real)
    keep_all_rows(monkeypatch)
    assert failed([rows_of_persons()])


@pytest.mark.slow
@pytest.mark.statistical
def test_a_person_who_is_counted_with_all_rows_is_told_apart(only, monkeypatch):
    keep_all_rows(monkeypatch)
    assert failed(only("neighbours", PERSONS, MANY))


@pytest.mark.slow
def test_the_cases_are_of_every_family_of_strategies():
    size = Size(draws=0, replicates=0, releases=0)
    names = {planned_case(case, size)[0].name for case in CASES}
    assert names == {
        *("OPT_M", "OPT_F", "OPT_R", "OPT_0", "OPT_x", "OPT_C", "Parts"),
        *("Identity", "Fourier+"),
    }


def test_events_are_chosen_and_bounded_on_different_values():
    """Where nothing tells two data sets apart nothing is found, however long one looks."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        ratios, other = rng.normal(size=(2, 300))
        assert shown_loss(ratios, other, noise="laplace") == 0


def test_a_part_that_is_not_there_is_refused():
    with pytest.raises(SpecError, match="choose from"):
        audit_run.audit(["luck"])


def test_the_command_prints_what_was_shown_and_what_cannot_be(monkeypatch):
    finding = Finding("a case", "a claim", True, "p = 0.5", draws=12, tests=1)
    monkeypatch.setattr(audit_run, "PARTS", {"residuals": lambda size: iter([finding])})
    done = run("audit")
    assert done.code == 0
    text = " ".join(done.out.split())
    for part in (
        "residuals: a claim",
        "ok a case p = 0.5",
        "12 draws",
        f"{ALPHA:.1e}",
        "cannot show",
    ):
        assert part in text
    printed = json.loads(run("audit", "--json").out)
    assert (printed["passed"], printed["tests"], printed["findings"][0]["draws"]) == (True, 1, 12)


@pytest.mark.parametrize("kind", [ValueError, MemoryError, OSError])
def test_a_part_that_ends_in_an_error_has_failed_and_the_others_run(kind, monkeypatch):
    def breaks(size):
        yield Finding("a case", "a claim", True, "fine")
        raise kind("the noise scale does not meet the budget")

    def fine(size):
        yield Finding("a case", "a claim", True, "fine")

    monkeypatch.setattr(audit_run, "PARTS", {"lattice": breaks, "residuals": fine})
    done = run("audit")
    assert done.code == 1
    assert "does not meet the budget" in done.out
    assert "residuals: a claim" in done.out


def test_more_tests_than_the_false_alarm_allows_are_a_mistake(monkeypatch):
    finding = Finding("a case", "a claim", True, "fine", tests=MOST_TESTS)
    parts = dict.fromkeys(("residuals", "independence"), lambda size: iter([finding]))
    monkeypatch.setattr(audit_run, "PARTS", parts)
    assert len(audit_run.audit(["residuals"])) == 1
    with pytest.raises(ValueError, match="false alarms"):
        audit_run.audit(["residuals", "independence"])


def test_a_part_that_is_named_six_times_is_run_once(monkeypatch):
    finding = Finding("a case", "a claim", True, "fine", tests=MOST_TESTS)
    monkeypatch.setattr(audit_run, "PARTS", {"residuals": lambda size: iter([finding])})
    assert audit_run.audit(["residuals"] * 6) == (replace(finding, part="residuals"),)


def test_the_command_ends_in_exit_1_where_a_check_fails(monkeypatch):
    finding = Finding("a case", "a claim", False, "p = 1e-12")
    monkeypatch.setattr(audit_run, "PARTS", {"residuals": lambda size: iter([finding])})
    done = run("audit", "--quick")
    assert done.code == 1
    assert "FAILED" in done.out
    assert "What this shows" not in done.out
    assert json.loads(run("audit", "--json").out)["passed"] is False


@pytest.mark.slow
@pytest.mark.statistical
def test_a_plan_of_ones_own_is_audited_on_made_up_data_alone(gaussian_town, monkeypatch):
    monkeypatch.setattr(audit_run, "QUICK", replace(FEW, replicates=100))
    Path("data.csv").unlink()
    before = spent()
    report = json.loads(ok("audit", "--quick", "--plan", "dpquery.plan", "--json").out)
    assert report["passed"]
    assert {finding["part"] for finding in report["findings"]} == set(audit_run.OF_PLANS)
    subjects = {finding["subject"] for finding in report["findings"]}
    assert any("laplace" in subject for subject in subjects)
    assert any("rounded" in subject for subject in subjects)
    assert spent() == before


def test_a_plan_that_cannot_be_audited_is_refused(town, monkeypatch):
    assert "cannot be read" in refused("audit", "--plan", "missing.plan", code=2)
    monkeypatch.setattr("dpquery.audit.planned_cases.MOST_CELLS", 50)
    assert "one by one" in refused("audit", "--plan", "dpquery.plan", code=2)


@pytest.mark.slow
@pytest.mark.statistical
def test_two_processes_that_draw_the_same_are_seen(monkeypatch):
    size = replace(FEW)
    planned = planned_case(ROWS, size)[0]
    assert two_processes(planned).passed
    monkeypatch.setattr(
        end_to_end, "_released", lambda planned, folder: np.arange(planned.strategy.length)
    )
    assert not two_processes(planned).passed
