"""The parts of a run of RAP add up to its guarantee, and what cannot be made is refused unread."""

import dataclasses
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
from rounds import AT_ONCE, DECLARED, PERSON, REPLACE, ROWS, SPEC, TWO, ask, write_csv

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.rounds import queries
from dpquery.measurement.rounds.budget import STEPS
from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Dense
from dpquery.plan_file.rehearsals import RapSettings, decode_settings, encode_settings
from dpquery.spec.spec import Rows

ALL_RANGES = "  - name: spans\n    ranges: {age: all}\n"
WIDE = str(list(range(999)))
MANY = [
    (SPEC, TWO),
    (SPEC, RapSettings(5, 1, 10, 0)),
    (SPEC, AT_ONCE),
    (REPLACE, TWO),
    (REPLACE, AT_ONCE),
    (DECLARED, TWO),
    (PERSON, TWO),
    (PERSON, AT_ONCE),
]


# What it costs.


@pytest.mark.parametrize(("spec", "settings"), MANY)
def test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction(spec, settings):
    split = ask(settings, spec=spec).mechanism
    whole = split.total_rho + settings.rounds * (split.selection_rho + split.measurement_rho)
    assert whole == split.guarantee.amount
    span = split.records * (2 if split.replace else 1)
    drawn = settings.selected * (split.rate * span) ** 2 / 8
    assert drawn <= split.selection_rho <= drawn * (1 + Fraction(1, 10**9))


def test_a_quarter_is_drawn_among_counts_too_high_where_that_is_sharper():
    split = ask(RapSettings(6, 3, 10, 0)).mechanism
    sides = [split.sides(number) for number in range(6)]
    assert all(under + over == 3 for (_, under), (_, over) in sides)
    assert [over for _, (_, over) in sides] == [0, 1, 1, 1, 0, 1]
    replacing = ask(RapSettings(6, 3, 10, 0), spec=REPLACE).mechanism
    assert replacing.sides(5) == (("either", 3),)
    assert split.rate == pytest.approx(float(2 * replacing.rate), rel=1e-12)


@pytest.mark.parametrize(("spec", "settings"), MANY)
def test_the_noise_of_every_part_costs_its_share_and_no_more(spec, settings):
    question = ask(settings, spec=spec)
    split, workload = question.mechanism, question.compiled.workload
    rng = np.random.default_rng(0)
    parts = [(split.total_rho, split.total_sensitivity, split.total_scale)]
    for _ in range(20):
        size = settings.selected or 1
        numbers = rng.choice(workload.shape[0], size, replace=False)
        move = split.sensitivity(workload, queries.all_places(workload)[numbers])
        scale = split.scale(split.measurement_rho, move)
        assert split.std_bounds[0] <= scale / STEPS <= split.std_bounds[1]
        parts.append((split.measurement_rho, move, scale))
    for rho, move, scale in parts[split.total is not None :]:
        cost = move / (2 * Fraction(scale) ** 2)
        assert cost <= rho <= cost * (1 + Fraction(1, 10**9))


def test_a_total_is_measured_unless_records_are_replaced_and_their_number_is_declared():
    assert () in ask(spec=SPEC).subsets
    assert () in ask(spec=REPLACE).subsets
    about = Rows(48, exact=False)
    assert ask(spec=REPLACE, rows=about).mechanism.total is None
    assert ask(spec=SPEC, rows=Rows(48, exact=True)).mechanism.total is None
    question = ask(spec=DECLARED)
    assert question.mechanism.total == 48
    assert (question.mechanism.total_rho, question.mechanism.total_std) == (0, 0)
    assert () not in question.subsets


def test_a_person_pays_for_all_rows():
    row, person = ask(spec=SPEC).mechanism, ask(spec=PERSON).mechanism
    assert person.total_std == pytest.approx(3 * row.total_std, rel=1e-12)
    assert person.std_bounds == pytest.approx([3 * bound for bound in row.std_bounds], rel=1e-12)
    assert float(row.rate / person.rate) == pytest.approx(3, rel=1e-12)


def test_a_total_takes_as_much_as_one_more_query_and_at_least_a_twentieth():
    for settings, share in ((TWO, Fraction(1, 13)), (RapSettings(4, 16, 10, 0), Fraction(1, 20))):
        split = ask(dataclasses.replace(settings, selected=min(settings.selected, 16))).mechanism
        assert split.total_rho == split.guarantee.amount * share


@pytest.mark.parametrize(("spec", "limit"), [(SPEC, 1), (REPLACE, 1), (PERSON, 3)])
def test_no_neighbour_moves_a_count_or_the_total_by_more_than_declared(tmp_path, spec, limit):
    question = ask(spec=spec)
    replace, person = "replace" in spec, "person" in spec
    header = "age,sex,job,id" if person else "age,sex,job"
    outside = (9, "X", "z")

    def counts(rows):
        file = write_csv(tmp_path / "counted.csv", rows, header)
        tables = tabulate(
            file,
            spec=question.spec,
            subsets=question.subsets,
            classes=question.compiled.classes,
        )
        blocks = question.compiled.workload.blocks
        return np.concatenate([tables[()].reshape(1), *(queries._exact(b, tables) for b in blocks)])

    def of(person_id, rows):
        return [(*row, person_id) if person else row for row in rows]

    others = of("p1", ROWS[:3]) + of("p2", ROWS[5:8])
    worst = 0
    records = [of("p0", rows) for rows in ([ROWS[0]] * 7, ROWS[::9], [outside, ROWS[4]], [])]
    records = records if person else [rows[:1] for rows in records]
    for before in records:
        for after in records if replace else [[]]:
            moved = counts([*others, *before]) - counts([*others, *after])
            assert replace or (moved >= 0).all()  # which one-sided draws rely on
            worst = max(worst, int(np.abs(moved).max()))
    assert worst == limit


# What is refused, and when.


@pytest.mark.parametrize(
    ("settings", "spec", "epsilon", "error"),
    [
        (RapSettings(100, 100, 10, 0), SPEC, 1, "fewer rounds"),
        (AT_ONCE, SPEC.replace("[0, 5]", "[0, 999999]"), 1, "select some in rounds"),
        (TWO, SPEC, 10**8, "smaller epsilon"),
        (TWO, SPEC.replace("[0, 5]", "[0, 99999]").replace("[a, b, c]", WIDE), 1, "coarser sets"),
        (RapSettings(1, 1, 2**20, 0), SPEC.replace("[0, 5]", "[0, 99]"), 1, "fewer relaxed rows"),
        (
            RapSettings(1, 0, 10_000, 0),
            SPEC.replace("[0, 5]", "[0, 255]") + ALL_RANGES,
            1,
            "name fewer ranges",
        ),
        (RapSettings(1, 4096, 1, 0), SPEC.replace("[0, 5]", "[0, 9999]"), 1, "queries a round"),
    ],
)
def test_a_run_that_cannot_be_made_is_refused_from_public_inputs(settings, spec, epsilon, error):
    with pytest.raises(SpecError, match=error):
        ask(settings, spec=spec, epsilon=epsilon)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {"rounds": 0},
        {"rounds": 1001},
        {"rounds": 2, "selected": 0},
        {"selected": -1},
        {"selected": 4097},
        {"rounds": 1000, "selected": 66},
        {"relaxed_rows": 0},
        {"relaxed_rows": 2**21},
        {"seed": -1},
        {"seed": 2**41},
        {"rounds": True},
        {"rounds": 2.0},
        {"selected": "3"},
        {"seed": None},
    ],
)
def test_hostile_settings_end_in_a_spec_error(raw):
    if isinstance(raw, dict) and raw:
        raw = encode_settings(TWO) | raw
    with pytest.raises(SpecError, match="dpquery plan"):
        decode_settings(raw)


def test_settings_come_back_as_they_were():
    for settings in (TWO, AT_ONCE):
        assert decode_settings(encode_settings(settings)) == settings


def test_a_query_takes_only_the_mechanism_of_its_settings():
    with pytest.raises(ValueError, match="other settings"):
        dataclasses.replace(ask(TWO), settings=AT_ONCE)
    question = ask(TWO)
    pure = guarantee("laplace", epsilon=Fraction(1), delta=Fraction(0))
    workload, privacy = question.compiled.workload, question.spec.privacy
    with pytest.raises(ValueError, match="zCDP"):
        queries.rap_budget(workload, TWO, privacy=privacy, guarantee=pure, rows=None)


@pytest.mark.parametrize("entries", [[0, 2], [1, -1], [0.5, 1.0], [0, 1]])
def test_queries_that_are_no_counts_are_refused_as_what_they_are(entries):
    factor = Dense(np.array([entries]))
    workload = Workload((2,), (product((2,), {0: factor}),) * 2, (1.0, 1.0))
    question = ask()
    counts = entries == [0, 1]
    with nullcontext() if counts else pytest.raises(UnsupportedWorkloadError, match="0 and 1"):
        queries.rap_budget(
            workload,
            RapSettings(1, 1, 10, 0),
            privacy=question.spec.privacy,
            guarantee=question.guarantee,
            rows=None,
        )
