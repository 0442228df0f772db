"""Values that many persons have are found within the declared epsilon and delta, and charged."""

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from functools import partial
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from specs import TYPED, cases, typed_table

from dpquery.audit.statistics import chi_square, pooled
from dpquery.exceptions import BudgetExceededError
from dpquery.measurement import curator
from dpquery.measurement.accounting import UNIT, budget_cap, epsilon_of_units
from dpquery.measurement.counting import persons, value_counts
from dpquery.measurement.counting.tabulate import count_values
from dpquery.measurement.counting.value_counts import ValueCounts, value_of
from dpquery.measurement.curator import measure
from dpquery.measurement.discovery import Discovery, noisy_pairs
from dpquery.measurement.gdp import epsilon_of_gdp
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.spec.columns import Attribute, Categorical, Column, Domain
from dpquery.spec.numbers import CLASS_DIGITS, class_edges, class_of, classes_by
from dpquery.spec.numbers import number as number_in
from dpquery.spec.spec import Budget, Dataset, Privacy, Spec

BUDGET = Budget(Fraction(4), Fraction(1, 10**6), accounting="gdp", discover=Fraction(1, 10**7))
PERSONS, ROWS = Privacy(person="id"), Privacy()


def spec_of(privacy=PERSONS):
    column = Column("job", Categorical((), ()))
    domain = Domain((Attribute("job", (column,)),))
    return Spec(Dataset("town"), privacy, BUDGET, domain, ())


def discovery(privacy=PERSONS, *, epsilon="0.2", delta="1e-8", max_values=1, sought="values"):
    return Discovery(spec_of(privacy), max_values, Fraction(epsilon), Fraction(delta), sought)


def outcomes(count, scale, threshold, far=12):
    """The law of what is published of one value: nothing first, then its noisy numbers from the
    threshold on, the last of them with all that lie beyond."""
    if not count:
        return np.array([1.0, *np.zeros(math.ceil(far * scale) + 1)])
    edges = np.array([-np.inf, *(np.arange(math.ceil(far * scale) + 1) + threshold - 0.5), np.inf])
    return np.diff(norm.cdf((edges - count) / scale))


def divergence(one, other, *, epsilon, scale, threshold):
    """The least delta for which (epsilon, delta) bounds two vectors of numbers of persons."""
    differing = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    p = q = np.ones(1)
    for a, b in differing:  # the others have one law, and are independent
        p = np.multiply.outer(p, outcomes(a, scale, threshold)).ravel()
        q = np.multiply.outer(q, outcomes(b, scale, threshold)).ravel()
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in ((p, q), (q, p)))


def neighbours(max_values, kind):
    """Every pair of vectors of numbers of persons, of three values and few persons, that differ by
    one person: with the person, and without or with another in the place."""
    held = [
        chosen
        for size in range(max_values + 1)
        for chosen in itertools.combinations(range(3), size)
    ]
    for others in itertools.product((0, 1, 5), repeat=3):
        for mine in held:
            for instead in held if kind == "replace" else [()]:
                yield tuple(
                    tuple(n + (i in values) for i, n in enumerate(others))
                    for values in (mine, instead)
                )


@pytest.mark.parametrize("kind", ["add-remove", "replace"])
@pytest.mark.parametrize(("max_values", "epsilon", "delta"), [(1, 1.5, 0.02), (2, 3, 0.1)])
def test_no_neighbours_are_told_apart_by_more_than_epsilon_and_delta(
    kind, max_values, epsilon, delta
):
    query = discovery(
        replace(PERSONS, neighbours=kind), epsilon=epsilon, delta=delta, max_values=max_values
    )
    pairs = {tuple(sorted(pair)) for pair in neighbours(max_values, kind)}
    asked = {"epsilon": float(epsilon), "scale": query.mechanism.scale}
    worst = max(divergence(*pair, threshold=query.threshold, **asked) for pair in pairs)
    assert worst <= delta
    # One less, and a person whom nobody is like is found too often, or the noise is idle.
    less = max(divergence(*pair, threshold=query.threshold - 1, **asked) for pair in pairs)
    assert less > 0.3 * delta


@pytest.mark.parametrize("max_values", [1, 3, 50])
@pytest.mark.parametrize("delta", ["1e-3", "1e-8", "1e-40", "1e-99"])
def test_what_only_one_person_has_is_published_with_half_of_delta_at_most(max_values, delta):
    """All of that person's values together; the next smaller threshold would pass it."""
    query = discovery(epsilon="0.7", delta=delta, max_values=max_values)
    scale, half = query.mechanism.scale, math.log(float(delta) / 2)
    chances = [
        math.log(max_values) + norm.logsf((query.threshold - less - 1.5) / scale) for less in (0, 1)
    ]
    assert chances[0] <= half + 1e-9 < chances[1] + 2e-9


@pytest.mark.statistical
def test_noisy_numbers_have_the_law_of_the_noise_and_pass_the_threshold_as_often():
    query = discovery(epsilon="2", delta="1e-3")
    scale, threshold, size = query.mechanism.scale, query.threshold, 30_000
    for above in (-2, 0, 3):
        counts = np.full(size, threshold + above)
        names = [str(i) for i in range(size)]
        pairs = noisy_pairs(ValueCounts(names, counts), query.mechanism, threshold)
        chance = norm.sf((-above - 0.5) / scale)
        assert binomtest(len(pairs), size, chance).pvalue > 1e-8
        places = np.arange(threshold, threshold + above + 8 * math.ceil(scale))
        edges = np.append(places, places[-1] + 1) - 0.5
        masses = np.diff(norm.cdf((edges - counts[0]) / scale)) / chance
        seen = Counter(count for _, count in pairs)
        counted = np.array([seen[place] for place in places])
        assert counted.sum() == len(pairs)
        assert chi_square(*pooled(counted, masses * len(pairs))) > 1e-8


def counted_in(tmp_path, rows, *, max_values, privacy=PERSONS, head="id,job", sought="values"):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return count_values(path, spec=spec_of(privacy), max_values=max_values, sought=sought)


def counts_of(tmp_path, rows, **options):
    counted = counted_in(tmp_path, rows, **options)
    return {v: int(n) for v, n in zip(counted.values, counted.counts, strict=True) if n}


@pytest.fixture
def same_chance(monkeypatch):
    """All counts draw the same bits, so that two files can be held against each other."""

    def bits(size):
        return (b"\x5a\xc3\x17\x88\x01\xfe\x42\x9d" * (size // 8 + 1))[:size]

    monkeypatch.setattr(value_counts, "PersonKeys", partial(persons.PersonKeys, bits))
    monkeypatch.setattr(value_counts.os, "urandom", bits)
    monkeypatch.setattr(value_counts, "_LEAST", 3)  # pairs are cut down again and again


ROWS_OF_ANY = st.lists(st.tuples(st.integers(1, 4), st.sampled_from("abcdef")), max_size=24)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=ROWS_OF_ANY, max_values=st.integers(1, 3), person=st.integers(1, 4))
def test_one_person_more_moves_as_many_values_as_count_by_one(
    tmp_path, same_chance, rows, max_values, person
):
    lines = [f"{i},{value}" for i, value in rows]
    others = [line for (i, _), line in zip(rows, lines, strict=True) if i != person]
    one, other = (Counter(counts_of(tmp_path, r, max_values=max_values)) for r in (lines, others))
    assert not other - one
    moved = one - other
    assert max(moved.values(), default=0) <= 1
    held = {value for i, value in rows if i == person}
    assert sum(moved.values()) == min(max_values, len(held))
    assert moved.keys() <= held


# Numbers, and rows of persons, by public classes.

# In one class by one digit, two or three, or none.
SOME = ("3", "-3", "17", "17.04", "18", "0.0001")


def classes_held(tmp_path, held, *, max_values, sought, privacy=PERSONS):
    """Count persons, each with some of SOME, in public classes."""
    rows = [f"{i},{number}" for i, numbers in enumerate(held) for number in numbers]
    asked = {"max_values": max_values, "sought": sought, "privacy": privacy}
    return counted_in(tmp_path, rows, **asked).counts


@pytest.mark.parametrize(("sought", "max_values"), [("numbers", 1), ("numbers", 2), ("rows", 1)])
def test_no_neighbours_move_the_classes_further_than_the_noise_is_for(
    tmp_path, same_chance, sought, max_values
):
    """Every person with up to two of six numbers beside two others; left out, or another instead.
    Persons keep their names, and so what counts of them."""
    others = [("17", "3"), ("18",)]
    held = [c for size in range(3) for c in itertools.combinations(SOME, size)] + [("3",) * 15]
    query = {
        kind: discovery(replace(PERSONS, neighbours=kind), max_values=max_values, sought=sought)
        for kind in ("add-remove", "replace")
    }
    tables = [
        classes_held(tmp_path, [*others, mine], max_values=max_values, sought=sought)
        for mine in held
    ]
    moved = [((a - tables[0]) ** 2).sum() for a in tables]
    assert max(moved) == query["add-remove"].mechanism.sensitivity
    assert max(moved) == (3 * max_values if sought == "numbers" else 2)
    swapped = max(((a - b) ** 2).sum() for a, b in itertools.combinations(tables, 2))
    assert swapped == query["replace"].mechanism.sensitivity == 2 * max(moved)


def test_one_row_more_moves_one_class_by_each_number_of_digits(tmp_path):
    rows = [
        classes_held(tmp_path, [(n,)], max_values=1, sought="numbers", privacy=ROWS) for n in SOME
    ]
    none = classes_held(tmp_path, [], max_values=1, sought="numbers", privacy=ROWS)
    assert not none.any()
    assert [int(((row - none) ** 2).sum()) for row in rows] == [3] * len(SOME)
    assert discovery(ROWS, sought="numbers").mechanism.sensitivity == 3
    pairs = itertools.combinations(rows, 2)
    assert max(((a - b) ** 2).sum() for a, b in pairs) == 6
    replaced = replace(ROWS, neighbours="replace")
    assert discovery(replaced, sought="numbers").mechanism.sensitivity == 6


@pytest.mark.parametrize(
    ("sought", "max_values", "squares"),
    [("values", 1, 1), ("values", 3, 3), ("numbers", 1, 3), ("rows", 1, 2)],
)
@pytest.mark.parametrize("kind", ["add-remove", "replace"])
def test_the_noise_is_that_of_all_that_one_person_moves(kind, sought, max_values, squares):
    """Values leave half of delta to the threshold; classes have none, and the noise has all."""
    unit = replace(PERSONS, neighbours=kind)
    query = discovery(unit, max_values=max_values, sought=sought)
    rest = query.delta / 2 if sought == "values" else 0
    moved = squares * (2 if kind == "replace" else 1)
    squared = moved / Fraction(query.mechanism.scale) ** 2
    assert squared * (1 - Fraction(1, 10**12)) < squared <= query.guarantee.amount
    assert epsilon_of_gdp(squared, query.delta - rest) <= query.epsilon
    assert epsilon_of_gdp(squared * Fraction(101, 100), query.delta - rest) > query.epsilon
    assert query.guarantee.threshold == rest


@pytest.mark.statistical
@pytest.mark.parametrize("sought", ["numbers", "rows"])
def test_every_class_has_the_noise_also_one_that_nobody_is_in(sought):
    query = discovery(epsilon="2", delta="1e-3", sought=sought)
    size = 40_000
    for true in (0, 7):
        noise = query.noisy(ValueCounts([], np.full(size, true))) - true
        edges = np.array([-np.inf, *(np.arange(-8, 10) - 0.5), np.inf])
        masses = np.diff(norm.cdf(edges / query.mechanism.scale))
        counted, _ = np.histogram(noise, edges)
        assert chi_square(counted, masses * size) > 1e-8


@settings(max_examples=200, deadline=None)
@given(st.decimals(places=4, min_value=-(10**7), max_value=10**7))
def test_a_number_lies_between_the_edges_of_its_classes(value):
    exact = class_of(number_in(format(value, "f")))
    for digits in CLASS_DIGITS:
        low, high = class_edges(digits, int(value_counts._by(digits, np.array([exact]))[0]))
        tiny = -Fraction(1, 1000) <= Fraction(value) < 0
        assert low <= Fraction(value) < high or (tiny and exact == -1)


def test_one_class_begins_where_the_one_before_ends():
    for digits in CLASS_DIGITS[:2]:
        last = classes_by(digits)
        edges = [class_edges(digits, place) for place in range(-last, last + 1)]
        gaps = [(a[1], b[0]) for a, b in itertools.pairwise(edges) if a[1] != b[0]]
        assert gaps == [(-Fraction(1, 1000), 0)]  # which is in the class below it
        assert edges[-1][1] == 10**15 == -edges[0][0]


def test_rows_of_persons_are_counted_as_a_twin_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(value_counts, "_LEAST", 5)
    rng = np.random.default_rng(4)
    ids = rng.integers(0, 40, 300).tolist() + [77] * 30
    rows = [f"{i},x" for i in ids] + [" ,x", ",x"]
    counts = counted_in(tmp_path, rows, max_values=1, sought="rows").counts
    expected = Counter(n if n < 10 else 10 * (n // 10) for n in Counter(ids).values())
    seen = {
        int(class_edges(1, place)[0]): int(counts[place + classes_by(1)])
        for place in range(classes_by(1) + 1)
        if counts[place + classes_by(1)]
    }
    assert seen == expected


def test_as_a_row_by_row_twin_counts_where_nothing_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(value_counts, "_LEAST", 5)
    rng = np.random.default_rng(1)
    rows = [(int(i), f"v{int(v)}") for i, v in rng.integers(0, 12, (400, 2))]
    holders = defaultdict(set)
    for person, value in rows:
        holders[value].add(person)
    expected = {value: len(persons_) for value, persons_ in holders.items()}
    lines = [f"{person},{value}" for person, value in rows]
    assert counts_of(tmp_path, lines, max_values=12) == expected
    assert counts_of(tmp_path, lines, max_values=1, privacy=ROWS) == Counter(v for _, v in rows)
    assert counts_of(tmp_path, [*lines, ",v1", " ,v0"], max_values=12) == expected  # nobody's
    for most in (1, 3):
        cut = counts_of(tmp_path, lines, max_values=most)
        held = Counter({i: len({v for p, v in rows if p == i}) for i, _ in rows})
        assert sum(cut.values()) == sum(min(most, n) for n in held.values())
        assert all(cut[value] <= expected[value] for value in cut)


SPELLED = [(1, "7"), (1, "7.0"), (2, " 07"), (2, "x"), (3, ""), (3, None), (None, "7"), (4, "x ")]


@pytest.mark.nightly(daily="kind1|arrow")
@pytest.mark.parametrize("name", cases(TYPED))
@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.int32()])
def test_whatever_the_source_the_same_persons_have_the_same_values(tmp_path, name, kind):
    """Ids and values of every type, blanks and null: `7`, `07`, `7.0` and 7 are one value."""
    rows = SPELLED
    if kind != pa.string():
        rows = [(person, 7 if text and "7" in text else None) for person, text in SPELLED]
    ids = {None: None} | {i: str(i) if kind == pa.string() else i for i in range(1, 5)}
    table = typed_table([(ids[i], text) for i, text in rows], {"id": kind, "job": kind})
    expected = {"7": 2, "x": 2} if kind == pa.string() else {"7": 2}
    location = TYPED[name](table, tmp_path / name)
    counted = count_values([location], spec=spec_of(), max_values=3)
    assert dict(zip(counted.values, counted.counts.tolist(), strict=True)) == expected


@pytest.mark.statistical
def test_which_values_of_a_person_count_is_left_to_chance(tmp_path):
    """And to other bits at every count; each of the person's values is as likely."""
    rows = [f"{person},{value}" for person in range(6000) for value in "abcd"]
    counted = counts_of(tmp_path, rows, max_values=1)
    assert sum(counted.values()) == 6000
    assert chi_square(np.array([counted[v] for v in "abcd"]), np.full(4, 1500.0)) > 1e-8
    assert counts_of(tmp_path, rows, max_values=1) != counted


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b" baker\t", "baker"),
        ("Bäcker\u00a0x".encode(), "Bäcker\u00a0x"),
        (b"007", "7"),
        (b"1.50", "1.5"),
        (b"+1e2", "100"),
        (b'a "b", c', 'a "b", c'),
        *((text, None) for text in (b"", b" \t ", b"\xff\xfe", b"a\x1b[31m", b"x" * 201)),
        *((text.encode(), None) for text in ("a\u202eb", "a\u2028b")),
    ],
)
def test_a_value_is_a_text_that_a_list_can_hold_in_one_spelling(field, value):
    assert value_of(field, ".") == value


def test_decimals_are_one_value_whatever_their_mark_in_a_file_with_commas():
    assert {value_of(text, ",") for text in (b"1,5", b"1.5", b"01,50")} == {"1.5"}


@pytest.fixture
def town(tmp_path):
    """A file of 900 persons with two common jobs and one of a single person, and a ledger."""
    rows = [f"{i},{'smith' if i % 3 < 2 else 'baker'}" for i in range(900)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,job", *rows, "900,zebra keeper"]) + "\n")
    with Ledger.open(tmp_path / "state" / "ledger.db", create=True) as ledger:
        ledger.register("town", budget_cap(BUDGET, PERSONS))
        yield tmp_path / "rows.csv", ledger


def account(ledger, name="town"):
    (status,) = [each for each in ledger.status() if each.account.dataset == name]
    return status.account


@pytest.mark.parametrize("sought", ["values", "numbers", "rows"])
@pytest.mark.parametrize(
    "place", ["count_values", "noisy_counts", "Ledger.commit", "Store.put", "after"]
)
def test_a_run_that_ends_anywhere_is_charged_once_and_goes_on(town, place, sought):
    data, ledger = town
    query, again = discovery(sought=sought), discovery(sought=sought)

    def ends(*_, **__):
        raise KeyboardInterrupt

    where = {
        "count_values": "dpquery.measurement.curator.count_values",
        "noisy_counts": "dpquery.measurement.discovery.noisy_counts",
        "Ledger.commit": "dpquery.measurement.ledger.ledger.Ledger.commit",
        "Store.put": "dpquery.measurement.ledger.store.Store.put",
        "after": "dpquery.measurement.ledger.store.PartialMeasurement.clear",
    }[place]
    with mock.patch(where, ends), pytest.raises(KeyboardInterrupt):
        measure(data, query, ledger=ledger)
    charged = account(ledger)
    assert charged.spent == math.ceil(query.guarantee.amount * UNIT)
    assert charged.threshold == (Fraction(1, 2 * 10**8) if sought == "values" else 0)
    assert charged.discovered
    done = measure(data, query, ledger=ledger)
    assert done.stored == (place == "after")
    assert account(ledger) == charged
    assert measure(data, again, ledger=ledger).values.tobytes() == done.values.tobytes()
    assert [event.kind for event in ledger.history()].count("reserve") == 1


@pytest.mark.parametrize(
    "other",
    [
        {"epsilon": "0.21"},
        {"delta": "2e-8"},
        {"max_values": 2},
        {"sought": "numbers"},
        {"sought": "rows"},
        {"privacy": replace(PERSONS, neighbours="replace")},
        {"privacy": replace(PERSONS, person="ID")},
    ],
)
def test_any_other_discovery_has_another_key(other):
    assert discovery(**other).key != discovery().key


def test_the_key_of_a_discovery_never_changes():
    assert discovery(max_values=3).key == KEY


KEY = "bc10a4ab97c8b02193815f45929e7ab3bd6c584a5baf356c9bec3b370ed93bd6"


def test_the_file_is_opened_after_the_charge_and_never_before_a_refusal(town, monkeypatch):
    data, ledger = town
    spent = []

    def watched(*args, **settings):
        spent.append(account(ledger).threshold)
        return count_values(*args, **settings)

    monkeypatch.setattr(curator, "count_values", watched)
    measure(data, discovery(), ledger=ledger)
    assert spent == [Fraction(1, 2 * 10**8)]
    with pytest.raises(BudgetExceededError, match="this discovery needs delta 1e-7, half of its"):
        measure(data.with_name("none.csv"), discovery(delta="2e-7"), ledger=ledger)
    with pytest.raises(BudgetExceededError, match="the largest that still fits is --epsilon"):
        measure(data.with_name("none.csv"), discovery(epsilon="40"), ledger=ledger)
    assert len(spent) == 1


def test_what_noise_may_spend_is_what_discoveries_leave():
    cap, alone = budget_cap(BUDGET, PERSONS), BUDGET.delta - BUDGET.discover
    without = replace(BUDGET, delta=alone, discover=Fraction(0))
    assert cap.units == budget_cap(without, PERSONS).units
    assert epsilon_of_units(cap, cap.units) <= float(BUDGET.epsilon)
