"""Counts are exact: they equal those of a reading line by line, in chunks of any size."""

import itertools
import json
import math
import traceback
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import FUZZ, LINE, assert_equal, attributes, run, single, slow_counts, spec_of, unhashed
from town import CSV, GAUSSIAN_SPEC, ok, refused

from dpquery.exceptions import DataError, UnsupportedWorkloadError
from dpquery.limits import MAX_STRATEGY_CELLS
from dpquery.measurement.accounting import UNIT, budget_cap
from dpquery.measurement.counting import tables, text_files
from dpquery.measurement.counting import tabulate as module
from dpquery.measurement.counting.tables import PackedCodes
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.measurement.gdp import squared_mu_of
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.plan_file.plan import plan_and_spec, read_plan
from dpquery.progress import reporting
from dpquery.spec.columns import Boolean, Integers
from dpquery.spec.spec import Budget, Dataset, Parent, Privacy


@FUZZ
@given(
    body=st.lists(LINE, max_size=12),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
    other=st.sampled_from(("count", "show", "drop")),
)
def test_counts_equal_a_line_by_line_reading(tmp_path, body, ending, last, other):
    content = ending.join(body) + (ending if last else b"")
    spec = spec_of(*attributes(other=other))
    assert_equal(run(tmp_path / "f.csv", content, spec=spec), slow_counts(content, spec=spec))


@pytest.mark.parametrize(
    "odd", [b'"', b'"1"x', b'1"x"', b'"1\n2"', b"\0", b"\r", b"\rx", b"\r\r\n"]
)
def test_a_chunk_with_what_the_fast_reader_takes_for_more_than_text_is_read_line_by_line(odd):
    assert text_files._is_clean(b"x,1\r\ny,2\n")
    assert text_files._is_clean(b'"x,1"\r\n"y","2""3"\n')
    assert not text_files._is_clean(b"x,1\r\ny" + odd + b",2\r\nz,3\n")


@FUZZ
@given(body=st.lists(LINE, max_size=8), chunk_bytes=st.integers(1, 40))
def test_nasty_files_count_the_same_in_any_chunks(tmp_path, body, chunk_bytes):
    content = b"\n".join(line for line in body if len(line) < 1000)
    spec = spec_of(*attributes(other="count"))
    completed = run(tmp_path / "f.csv", content, spec=spec, chunk_bytes=chunk_bytes)
    assert_equal(completed, run(tmp_path / "f.csv", content, spec=spec))


def test_codes_that_fill_many_words_come_back_from_them():
    shape = (2, 2**62, 7, 3, 2**62, 1, 2**31)
    packed, rng = PackedCodes((0, 1, 2, 4, 5, 6), shape), np.random.default_rng(3)
    codes = {i: rng.integers(0, shape[i], 50) for i in (0, 1, 2, 4, 5, 6)}
    rows = rng.integers(0, 2, 50) == 1
    words = packed.pack(codes, rows)
    assert words.shape == (packed.words, rows.sum())
    assert packed.words == 4
    assert PackedCodes((0, 2, 3), shape).words == PackedCodes((), shape).words == 1
    for i, found in packed.unpack(words).items():
        np.testing.assert_array_equal(found, codes[i][rows])


def test_a_line_too_long_is_one_malformed_record_in_any_chunks(tmp_path):
    spec = spec_of(single("age", Integers(0, 1), other="count"))
    for long in (
        b"0" * text_files.MAX_LINE,
        b"0" * (text_files.MAX_LINE + 1),
        b"1," * (3 * text_files.MAX_LINE),
    ):
        for body in (b"0\n" + long + b"\n1\n", long, b"0\n1\n" + long + b"\r\n"):
            expected = slow_counts(body, spec=spec, header=b"age", subsets=[(0,)])
            for chunk_bytes in (2**17, 2**20, 2**24):
                completed = run(
                    tmp_path / "f.csv",
                    body,
                    spec=spec,
                    header=b"age",
                    subsets=[(0,)],
                    chunk_bytes=chunk_bytes,
                )
                assert_equal(completed, expected)


@pytest.mark.parametrize(
    ("line", "small"), [(b"1," + b"x" * text_files.MAX_LINE, 2**17), (b"\xef\xbb\xbf1,x", 4)]
)
def test_what_a_line_is_does_not_depend_on_where_a_chunk_begins(tmp_path, line, small):
    spec = spec_of(single("age", Integers(0, 1)))
    body = b"0,x\n" + line + b"\n0,x\n"
    for chunk_bytes in (small, 2**20, 2**24):
        for first in (0, 4):
            options = {"header": b"age,more", "subsets": [(0,)]}
            completed = run(
                tmp_path / "f.csv", body[first:], spec=spec, chunk_bytes=chunk_bytes, **options
            )
            assert_equal(completed, slow_counts(body[first:], spec=spec, **options))
            assert completed[0,].tolist() == [2 - first // 4, 0]


def test_a_chunk_never_grows_past_a_line_and_its_own_size():
    class Endless:
        def __init__(self):
            self.left = 64

        def read(self, size):
            self.left -= 1
            return b"x" * size if self.left else b"\ny"

    pieces = list(itertools.islice(text_files.chunks(Endless(), 2**18), 1))
    assert max(map(len, pieces)) <= text_files.MAX_LINE + 2**18


def test_a_value_outside_a_column_that_no_subset_names_still_takes_the_record_out(tmp_path):
    spec = spec_of(single("a", Integers(0, 1)), single("b", Integers(0, 1)))
    completed = run(tmp_path / "f.csv", b"1,1\n1,7\n", spec=spec, header=b"a,b", subsets=[(0,)])
    assert completed[0,].tolist() == [0, 1]


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"\n", b"SECRET,sex", b"sex,age,sex,SECRET", b'"sex,age', b"\xff\xfes\0e\0x\0"),
        *(b"\x1f\x8b\x08", b"sex,age" + b"," * (text_files.MAX_LINE + 1)),
    ],
)
def test_a_header_that_is_not_as_declared_is_refused_without_showing_it(tmp_path, header):
    path = tmp_path / "f.csv"
    path.write_bytes(header)
    spec = spec_of(single("sex", Boolean()), single("age", Integers(0, 1)))
    for refuse in (check_header, lambda p, s: tabulate(p, spec=s, subsets=[()])):
        with pytest.raises(DataError) as caught:
            refuse(path, spec)
        shown = "".join(traceback.format_exception(caught.value))
        assert "SECRET" not in shown
    if header.startswith(b"SECRET"):
        assert "column age;" in str(caught.value)


def test_a_header_may_have_a_byte_order_mark_quotes_spaces_and_crlf(tmp_path):
    spec = spec_of(single("sex", Boolean()), single("age", Integers(0, 1)), person="id")
    path = tmp_path / "f.csv"
    path.write_bytes(b'\xef\xbb\xbf"sex", age ,other,other,id\r\nyes,1,,,p\r\n')
    check_header(path, spec)
    assert tabulate(path, spec=spec, subsets=[(0, 1)])[0, 1].tolist() == [[0, 0], [0, 1]]


def test_a_missing_file_a_folder_and_a_broken_disk_are_named(tmp_path, monkeypatch):
    spec = spec_of(single("sex", Boolean()))
    for path, words in ((tmp_path / "none.csv", "there is no file"), (tmp_path, "without files")):
        with pytest.raises(DataError, match=words):
            check_header(path, spec)
    path = tmp_path / "f.csv"
    path.write_bytes(b"sex\nyes\n")

    def broken(*args, **settings):
        raise OSError("CANARY yes")

    monkeypatch.setattr(text_files, "columns", broken)
    with pytest.raises(DataError) as caught:
        tabulate(path, spec=spec, subsets=[()])
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


def test_progress_ends_at_one(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(b"sex\n" + b"yes\n" * 100)
    seen = []
    with reporting(seen.append):
        tabulate(path, spec=spec_of(single("sex", Boolean())), subsets=[()])
    assert seen[-1] == "reading the data: 100%"


def test_subsets_are_increasing_and_their_cells_are_bounded(tmp_path):
    spec = spec_of(*(single(c, Integers(0, 99_999)) for c in "ab"))
    for subset in [(1, 0), (0, 0), (2,), (-1,)]:
        with pytest.raises(ValueError, match="increasing"):
            tabulate(tmp_path / "f.csv", spec=spec, subsets=[subset])
    with pytest.raises(UnsupportedWorkloadError, match="cells"):
        tabulate(tmp_path / "f.csv", spec=spec, subsets=[(0, 1)])


def test_a_large_sparse_table_is_counted_too(tmp_path):
    spec = spec_of(*(single(c, Integers(0, 999)) for c in "ab"))
    completed = run(
        tmp_path / "f.csv", b"5,7\n5,7\n", spec=spec, header=b"a,b", subsets=[(0, 1), (1,)]
    )
    assert completed[0, 1][5, 7] == completed[0, 1].sum() == completed[1,][7] == 2


def subsets_up_to(d, size):
    return [subset for k in range(size + 1) for subset in itertools.combinations(range(d), k)]


def test_every_subset_is_counted_in_a_table_that_holds_it():
    shape = (3, 1, 4, 2, 5, 2)
    subsets = [*subsets_up_to(6, 3), (0, 1, 2, 3, 4), (0, 2)]
    homes = tables.homes_of(subsets, shape)
    assert set(homes) == set(subsets)
    assert all(set(subset) <= set(home) for subset, home in homes.items())
    assert set(homes.values()) == {*itertools.combinations(range(6), 3), (0, 1, 2, 3, 4)} - {
        *itertools.combinations(range(5), 3)
    }


@pytest.mark.parametrize("small", [0, 20, 10**6])
def test_a_table_is_the_sum_of_any_larger_one(tmp_path, monkeypatch, small):
    monkeypatch.setattr(tables, "_SMALL", small)
    generator = np.random.default_rng(3)
    sizes = (3, 1, 4, 2, 5)
    spec = spec_of(*(single(c, Integers(0, n - 1)) for c, n in zip("abcde", sizes, strict=True)))
    rows = np.column_stack([generator.integers(n, size=200) for n in sizes])
    (tmp_path / "f.csv").write_text("a,b,c,d,e\n" + "\n".join(",".join(map(str, r)) for r in rows))
    subsets = [*subsets_up_to(5, 2), (0, 2, 3, 4), (1, 2, 4)]
    found = tabulate(tmp_path / "f.csv", spec=spec, subsets=subsets)
    assert list(found) == subsets
    for subset, counts in found.items():
        expected = np.zeros([sizes[i] for i in subset], np.int64)
        np.add.at(expected, tuple(rows[:, i] for i in subset), 1)
        np.testing.assert_array_equal(counts, expected if subset else len(rows))


def test_tables_inside_others_do_not_count_against_the_limit(monkeypatch):
    subsets, shape = subsets_up_to(30, 2), (10,) * 30
    monkeypatch.setattr(tables, "MAX_COUNTED_CELLS", 435 * 100)
    pairs = set(itertools.combinations(range(30), 2))
    assert set(tables.homes_of(subsets, shape).values()) == pairs
    monkeypatch.setattr(tables, "MAX_COUNTED_CELLS", 435 * 100 - 1)
    with pytest.raises(UnsupportedWorkloadError, match=r"the limit is 43,499"):
        module.check_table_sizes(subsets, shape)


def test_what_is_planned_can_be_counted():
    assert MAX_STRATEGY_CELLS <= tables.MAX_COUNTED_CELLS


# What losses are added up as: said by the first plan, kept by the record, carried by releases.


SPEC = GAUSSIAN_SPEC.replace("neighbours: replace", "neighbours: add-remove")
OPEN = "budget: {epsilon: 4, delta: 1e-6}"
EPSILON, DELTA = Fraction(1), Fraction(1, 10**6)


@pytest.fixture
def folder(own_folder):
    Path("people.csv").write_bytes(CSV)
    return own_folder


def planned(*options, budget="{epsilon: 4, delta: 1e-6}", parent="", name="town", text=SPEC):
    spec = text.replace("{epsilon: 4, delta: 1e-6}", budget).replace(", version: 1", parent)
    spec = spec.replace("id: town", f"id: {name}")
    Path("workload.yaml").write_text(spec)
    quick = ("--epsilon", 1, "--time-limit", 0, "--why")
    return ok("plan", "workload.yaml", *quick, *options).out


def currencies():
    with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
        accounts = [status.account for status in ledger.status()]
    return {account.dataset: account.cap.currency for account in accounts}


def released(noise, out="release", epsilon=1):
    ok("release", "people.csv", "--epsilon", epsilon, "--noise", noise, "--out", out)
    return json.loads(Path(out, "release.json").read_text())


def test_a_plan_with_gaussian_noise_counts_in_gdp_and_takes_the_noise_of_the_curve(folder):
    said = planned()
    counted = "losses are added up as mu^2 of GDP, which RAP and adaptive measurement cannot be "
    assert f"{counted}charged to: the plan prefers Gaussian noise" in " ".join(said.split())
    assert currencies() == {"town": "mu^2"}
    made = released("gaussian")
    promise, noise = made["guarantee"], made["noise"]
    assert (promise["kind"], promise["mechanism"]) == ("gdp", "rounded Gaussian")
    assert promise["rho"] is None
    squared = squared_mu_of(EPSILON, DELTA)
    assert promise["mu"] == pytest.approx(math.sqrt(squared))
    assert Fraction(promise["charged"]) == squared
    exact = Fraction(int(noise["sensitivity"])) / Fraction(noise["scale"]) ** 2
    assert squared * (1 - Fraction(1, 10**12)) < exact <= squared
    statement = Path("release/statement.md").read_text()
    assert "of Gaussian differential privacy, rounded Gaussian noise)" in statement
    assert "normal noise rounded to a whole number" in " ".join(statement.split())
    with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
        (status,) = ledger.status()
        assert status.account.spent == squared * UNIT
        assert status.account.pure is None
    again = ok("release", "people.csv", "--epsilon", 1, "--noise", "gaussian")
    assert "nothing was charged" in again.err
    ok("error-report")
    ok("answer", "release", "workload.yaml", "--out", "answers")


def test_the_spec_overrules_the_choice(folder):
    said = planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    assert "losses are added up" not in said
    assert currencies() == {"town": "rho"}
    assert "accounting" not in json.loads(Path("dpquery.plan").read_text())
    assert released("gaussian")["guarantee"]["kind"] == "zcdp"
    assert "mu" not in json.loads(Path("release/release.json").read_text())["guarantee"]
    Path("workload.yaml").write_text(SPEC.replace(OPEN, OPEN[:-1] + ", accounting: gdp}"))
    message = refused("plan", "workload.yaml", "--change-cap", code=5)
    assert "charged in rho" in message


def test_a_record_in_epsilon_takes_laplace_noise_alone(folder):
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: pure}")
    assert currencies() == {"town": "epsilon"}
    plan, _ = plan_and_spec(Path("dpquery.plan").read_bytes(), Path("dpquery.plan"))
    assert [one.noise for one in plan.selections] == ["laplace"]


def test_a_dataset_on_record_keeps_its_currency(folder):
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    released("gaussian", out="before")
    said = planned()
    assert "losses are added up as rho of zCDP: town is on record so" in " ".join(said.split())
    assert read_plan(Path("dpquery.plan").read_bytes()).accounting == "zcdp"
    assert currencies() == {"town": "rho"}
    assert released("gaussian")["guarantee"]["mechanism"] == "discrete Gaussian"


PARENT = ", parent: {id: panel, budget: {epsilon: 8, delta: 1e-6}}"


def test_a_dataset_that_was_not_charged_moves_to_what_the_next_plan_says(folder):
    """To and fro, its parent and that one's other datasets with it, at caps worked out anew."""
    small = {"parent": PARENT, "text": SPEC[: SPEC.index("  - name: pairs")]}
    planned(name="other", **small)
    family = {"town", "other", "panel"}
    for accounting, currency in (("zcdp", "rho"), ("gdp", "mu^2"), ("zcdp", "rho")):
        fixed = f"{{epsilon: 4, delta: 1e-6, accounting: {accounting}}}"
        planned("--new-dataset", budget=fixed, **small)
        assert currencies() == dict.fromkeys(family, currency)
        with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
            caps = {one.account.dataset: one.account.cap for one in ledger.status()}
        for name in family:
            promise = Budget(epsilon=Fraction(8 if name == "panel" else 4), delta=DELTA)
            budget = replace(promise, accounting=accounting)
            assert caps[name].units == budget_cap(budget, Privacy()).units
    said = planned(**small)
    assert "cannot be charged to: the plan prefers Gaussian noise" in " ".join(said.split())
    assert currencies() == dict.fromkeys(family, "mu^2")
    released("gaussian")
    fixed = "{epsilon: 4, delta: 1e-6, accounting: zcdp}"
    Path("workload.yaml").write_text(
        Path("workload.yaml").read_text().replace("{epsilon: 4, delta: 1e-6}", fixed)
    )
    refused("plan", "workload.yaml", code=5)


def test_a_plan_looks_at_the_ledger_once_before_it_searches(folder, monkeypatch):
    opened, real = [], Ledger.open.__func__

    def counting(cls, path, *, create, **terms):
        opened.append(create)
        return real(cls, path, create=create, **terms)

    monkeypatch.setattr(Ledger, "open", classmethod(counting))
    planned()
    assert opened == [True, True]  # what registration would say, and registration
    opened.clear()
    planned()
    assert opened == [False, True, True]  # what is on record


@pytest.mark.nightly
def test_a_release_in_gdp_is_charged_half_of_mu_squared_where_rho_adds_up(folder):
    planned()
    first = {name: Path(name).read_bytes() for name in ("dpquery.plan", "workload.yaml")}
    Path("state/ledger.db").rename("elsewhere.db")
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    for name, content in first.items():
        Path(name).write_bytes(content)
    assert released("gaussian")["guarantee"]["kind"] == "gdp"
    with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
        assert ledger.status()[0].account.spent == math.ceil(
            squared_mu_of(EPSILON, DELTA) * UNIT / 2
        )


def test_a_release_in_rho_is_refused_where_mu_squared_adds_up(folder):
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    content = Path("dpquery.plan").read_bytes()
    Path("state/ledger.db").rename("elsewhere.db")
    planned()
    Path("dpquery.plan").write_bytes(content)
    message = refused("release", "people.csv", "--epsilon", 1, "--noise", "gaussian", code=3)
    assert "run `dpquery plan` again" in message
    assert "accounting: zcdp" in message


def test_a_plan_that_counts_in_two_ways_is_refused(folder):
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    raw = unhashed(Path("dpquery.plan").read_text())
    raw["accounting"] = "gdp"
    Path("dpquery.plan").write_text(json.dumps(raw, indent=1))
    assert "two ways" in refused("release", "people.csv", "--epsilon", 1, code=2)


def test_budgets_agree_on_what_is_added_up():
    open_one, rho = Budget(epsilon=EPSILON, delta=DELTA), Budget(rho=EPSILON)
    assert (open_one.fixed, open_one.counted) == (None, "zcdp")
    assert (rho.fixed, Budget(epsilon=EPSILON).fixed) == ("zcdp", "pure")
    assert Dataset("a", "1", parent=Parent("b", rho)).parent.budget.fixed == "zcdp"
