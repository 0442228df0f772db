"""Counts are exact and stable: one line more, of whatever bytes, is one record more at most."""

import csv
import itertools
import json
import math
import traceback
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpquery.exceptions import DataError, UnsupportedWorkloadError
from dpquery.measurement import lines
from dpquery.measurement import tabulate as module
from dpquery.measurement.tabulate import check_header, tabulate
from dpquery.spec.domain import Attribute, Bins, Boolean, Categorical, Column, Domain, Integers
from dpquery.spec.model import Budget, Dataset, Privacy, Spec
from dpquery.strategy.strategies import MAX_TOTAL

SHARED = Path(__file__).resolve().parents[2] / "shared"


def spec_of(*attributes, person=None, max_rows=1):
    return Spec(
        dataset=Dataset("test"),
        privacy=Privacy(person=person, max_rows=max_rows),
        budget=Budget(),
        domain=Domain(tuple(attributes)),
        items=(),
    )


def single(name, kind, *, other=False, header=None):
    return Attribute(name, (Column(header or name, kind, other),))


def attributes(*, other):
    """One attribute of every kind, one of them merged from two columns."""
    return (
        single("sex", Categorical(("M", "F"), ("Male", "Female")), other=other),
        single("age", Integers(-1, 3), other=other),
        single("pay", Bins((0.0, 1.5, 10.0)), other=other, header="income"),
        Attribute(
            "race", (Column("w", Boolean(), other), Column("b", Boolean(("Ä",), ("n",)), other))
        ),
    )


HEADER = b'sex,age,"income",w,b,extra'
WIDTH = 6
ALL_SUBSETS = [s for r in range(5) for s in itertools.combinations(range(4), r)]


def run(path, body, *, spec, header=HEADER, subsets=ALL_SUBSETS, chunk_bytes=2**24, classes=None):
    path.write_bytes(header + b"\n" + body)
    tally = module._Tally(spec, subsets, classes or [np.arange(n) for n in spec.domain.shape])
    return module._tabulate(path, tally, progress=None, chunk_bytes=chunk_bytes)


def slow_code(column, text):
    """The code of one text, by the rules as they are documented."""
    text = text.strip(" \t\r\n\x0b\x0c")
    code = -1
    match column.kind:
        case Categorical(values=values):
            code = values.index(text) if text in values else -1
        case Integers(low=low, high=high):
            whole, dot, zeros = text.lstrip("+-").partition(".")
            if whole.isascii() and whole.isdigit() and set(zeros) <= {"0"} and len(text) <= 64:
                signs = text[: len(text) - len(whole + dot + zeros)]
                value = int(signs[-1:] + whole) if len(signs) <= 1 else low - 1
                code = value - low if low <= value <= high else -1
        case Bins(edges=edges):
            if text.isascii() and set(text) <= set("0123456789.eE+-") and len(text) <= 64:
                try:
                    value = float(text)
                except ValueError:
                    value = math.nan
                for i, (low, high) in enumerate(itertools.pairwise(edges)):
                    code = i if low <= value < high else code
        case Boolean(true=true, false=false):
            utf8 = text.encode("latin-1").decode(errors="replace").casefold()
            code = 0 if utf8 in [t.casefold() for t in false] else -1
            code = 1 if utf8 in [t.casefold() for t in true] else code
    return column.length if code < 0 and column.other else code


def slow_record(line, width):
    """The fields of a line, or None if it is malformed."""
    line = line[:-1] if line[-1:] == b"\r" else line
    text = line.decode("latin-1")
    try:
        row = next(csv.reader([text], strict=True)) if '"' in text else text.split(",")
    except (csv.Error, StopIteration):
        return None
    return None if len(row) != width or "\r" in text or "\0" in text else row


def slow_counts(body, *, spec, header=HEADER, subsets=ALL_SUBSETS):
    names = next(csv.reader([header.decode()]))
    counts = {s: np.zeros([spec.domain.shape[i] for i in s], np.int64) for s in subsets}
    rows_of = {}
    for line in body.split(b"\n"):
        if line in (b"", b"\r"):
            continue
        row = slow_record(line, len(names)) if len(line) <= lines.MAX_LINE else None
        fields = dict(zip(names, row, strict=True)) if row else dict.fromkeys(names, "\x01")
        cell = []
        for attribute in spec.domain.attributes:
            codes = [slow_code(c, fields[c.name]) for c in attribute.columns]
            sizes = [c.size for c in attribute.columns]
            cell.append(-1 if min(codes) < 0 else int(np.ravel_multi_index(codes, sizes)))
        if min(cell) < 0:
            continue
        if spec.privacy.person:
            person = fields[spec.privacy.person].strip() if row else ""
            rows_of[person] = rows_of.get(person, 0) + 1
            if not person or rows_of[person] > spec.privacy.max_rows:
                continue
        for subset in subsets:
            counts[subset][tuple(cell[i] for i in subset)] += 1
    return counts


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for subset, counts in expected.items():
        assert found[subset].shape == counts.shape
        assert found[subset].dtype == np.int64
        np.testing.assert_array_equal(found[subset], counts, err_msg=str(subset))


NICE = st.tuples(
    st.sampled_from([b"M", b"F", b" F ", b"m", b'"M"', b""]),
    st.sampled_from([b"-1", b"0", b"3", b"+2", b"4", b"2.0", b"1.5", b"9" * 30, b"x"]),
    st.sampled_from([b"0", b"1.5", b"-0", b"9.99", b"10", b"nan", b"1e400", b"1e0", b".5", b"1_0"]),
    st.sampled_from([b"yes", b"NO", b"1", b"0", b"t", b"maybe", b"\xff"]),
    st.sampled_from(["Ä".encode(), "ä".encode(), b"n", b"N", b"", b'"n"']),
    st.sampled_from([b"x", b"", b" "]),
).map(b",".join)
BYTES = [b'"', b"\r", b"\0", b"\xef\xbb\xbf", b"M", b"1", b" ", b"\xff", b"\\", b"#", b"\x0b"]
NASTY = st.lists(st.sampled_from([*BYTES, b","]), max_size=12).map(b"".join)
# A nice line with a few odd bytes somewhere: it keeps its width, so it is not merely ragged.
BITTEN = st.tuples(NICE, st.integers(0, 20), st.sampled_from(BYTES)).map(
    lambda bite: bite[0][: bite[1]] + bite[2] + bite[0][bite[1] :]
)
ROW = b"M,1,1,yes,n,"
SPECIAL = st.sampled_from(
    [
        *(b"", b"\r", b'"', b'""', b",,,,,", b"M,1,1,yes,n", b'M,1,"1\r,yes,n,'),
        *(b"M\r,1,1,yes,n,", b'"M"x,1,1,yes,n,', b"M\0,1,1,yes,n,"),
        *(
            ROW,
            ROW + b"\r",
            ROW + b"\r\r",
            ROW + b'"x',
            b"\xef\xbb\xbf" + ROW,
            ROW + b"x" * 200_000,
        ),
        *(ROW + b"x" * lines.MAX_LINE, b'"' + b"x" * lines.MAX_LINE + b'"'),
    ]
)
LINE = st.one_of(NICE, NICE, BITTEN, NASTY, SPECIAL)
FUZZ = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@FUZZ
@given(
    body=st.lists(LINE, max_size=12),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
    other=st.booleans(),
)
def test_counts_equal_a_line_by_line_reading(tmp_path, body, ending, last, other):
    content = ending.join(body) + (ending if last else b"")
    spec = spec_of(*attributes(other=other))
    assert_equal(run(tmp_path / "f.csv", content, spec=spec), slow_counts(content, spec=spec))


@FUZZ
@given(body=st.lists(NICE, max_size=30), chunk_bytes=st.integers(1, 200), other=st.booleans())
def test_clean_files_count_the_same_in_any_chunks(tmp_path, body, chunk_bytes, other):
    content = b"\n".join(line.replace(b'"', b"") for line in body)
    spec = spec_of(*attributes(other=other))
    found = run(tmp_path / "f.csv", content, spec=spec, chunk_bytes=chunk_bytes)
    assert_equal(found, slow_counts(content, spec=spec))


@FUZZ
@given(body=st.lists(LINE, max_size=8), chunk_bytes=st.integers(1, 40))
def test_nasty_files_count_the_same_in_any_chunks(tmp_path, body, chunk_bytes):
    content = b"\n".join(line for line in body if len(line) < 1000)
    spec = spec_of(*attributes(other=True))
    found = run(tmp_path / "f.csv", content, spec=spec, chunk_bytes=chunk_bytes)
    assert_equal(found, run(tmp_path / "f.csv", content, spec=spec))


@FUZZ
@given(body=st.lists(LINE, max_size=8), extra=LINE, place=st.integers(0, 8), other=st.booleans())
def test_one_line_more_moves_every_marginal_by_one_at_most(tmp_path, body, extra, place, other):
    spec = spec_of(*attributes(other=other))
    without = run(tmp_path / "f.csv", b"\n".join(body), spec=spec)
    body.insert(place, extra)
    with_extra = run(tmp_path / "f.csv", b"\n".join(body), spec=spec)
    moves = {int(np.abs(with_extra[s] - without[s]).sum()) for s in ALL_SUBSETS}
    assert moves <= {0, 1}
    assert len(moves) == 1  # a record is in all marginals or in none


@FUZZ
@given(
    body=st.lists(st.tuples(st.sampled_from([b"p", b"q", b" p", b"", b'"q"']), NICE), max_size=12),
    extra=st.lists(st.tuples(st.integers(0, 12), LINE), max_size=6),
    max_rows=st.integers(1, 3),
)
def test_one_person_more_moves_every_marginal_by_max_rows_at_most(tmp_path, body, extra, max_rows):
    spec = spec_of(*attributes(other=True), person="id", max_rows=max_rows)
    header = b"id," + HEADER
    content = [b",".join(pair) for pair in body]
    before = run(tmp_path / "f.csv", b"\n".join(content), spec=spec, header=header)
    assert_equal(before, slow_counts(b"\n".join(content), spec=spec, header=header))
    for place, line in extra:
        content.insert(place, b"newcomer," + line)
    after = run(tmp_path / "f.csv", b"\n".join(content), spec=spec, header=header, chunk_bytes=50)
    for subset in ALL_SUBSETS:
        assert np.abs(after[subset] - before[subset]).sum() <= max_rows


@FUZZ
@given(body=st.lists(LINE, max_size=12), other=st.booleans())
def test_classes_add_up_the_counts_of_their_codes(tmp_path, body, other):
    spec = spec_of(*attributes(other=other))
    classes = [np.arange(n) % k for n, k in zip(spec.domain.shape, (1, 2, 2, 3), strict=True)]
    merged = run(tmp_path / "f.csv", b"\n".join(body), spec=spec, classes=classes)
    for subset, counts in run(tmp_path / "f.csv", b"\n".join(body), spec=spec).items():
        expected = np.zeros([int(classes[i].max()) + 1 for i in subset], np.int64)
        for cell in np.ndindex(counts.shape):
            merged_cell = tuple(classes[i][c] for i, c in zip(subset, cell, strict=True))
            expected[merged_cell] += counts[cell]
        np.testing.assert_array_equal(merged[subset], expected)


def test_a_person_keeps_the_first_rows_inside_the_domain(tmp_path):
    spec = spec_of(single("age", Integers(0, 9)), person="id", max_rows=2)
    body = b"a,99\na,1\n a ,2\na,3\nb,4\n,5\n  ,5\n"
    found = run(tmp_path / "f.csv", body, spec=spec, header=b"id,age", subsets=[(0,)])
    assert found[0,].tolist() == [0, 1, 1, 0, 1, 0, 0, 0, 0, 0]


def test_a_line_too_long_is_one_malformed_record_in_any_chunks(tmp_path):
    spec = spec_of(single("age", Integers(0, 1), other=True))
    for long in (b"0" * lines.MAX_LINE, b"0" * (lines.MAX_LINE + 1), b"1," * (3 * lines.MAX_LINE)):
        for body in (b"0\n" + long + b"\n1\n", long, b"0\n1\n" + long + b"\r\n"):
            expected = slow_counts(body, spec=spec, header=b"age", subsets=[(0,)])
            for chunk_bytes in (2**17, 2**20, 2**24):
                found = run(
                    tmp_path / "f.csv",
                    body,
                    spec=spec,
                    header=b"age",
                    subsets=[(0,)],
                    chunk_bytes=chunk_bytes,
                )
                assert_equal(found, expected)


def test_a_chunk_never_grows_past_a_line_and_its_own_size():
    class Endless:
        def __init__(self):
            self.left = 64

        def read(self, size):
            self.left -= 1
            return b"x" * size if self.left else b"\ny"

    pieces = list(itertools.islice(lines.chunks(Endless(), 2**18), 1))
    assert max(map(len, pieces)) <= lines.MAX_LINE + 2**18


def test_a_file_without_rows_counts_nothing(tmp_path):
    spec = spec_of(*attributes(other=True))
    for body in (b"", b"\n", b"\r\n\n"):
        found = run(tmp_path / "f.csv", body, spec=spec)
        assert all(not counts.any() for counts in found.values())
    (tmp_path / "g.csv").write_bytes(HEADER)
    assert tabulate(tmp_path / "g.csv", spec=spec, subsets=[()])[()] == 0


def test_the_total_counts_every_record_when_every_column_has_another_bin(tmp_path):
    spec = spec_of(single("age", Integers(0, 1), other=True))
    found = run(tmp_path / "f.csv", b"0\n7\n1,1\n", spec=spec, header=b"age", subsets=[()])
    assert found[()].shape == ()
    assert found[()] == 3


def test_a_value_outside_a_column_that_no_subset_names_still_takes_the_record_out(tmp_path):
    spec = spec_of(single("a", Integers(0, 1)), single("b", Integers(0, 1)))
    found = run(tmp_path / "f.csv", b"1,1\n1,7\n", spec=spec, header=b"a,b", subsets=[(0,)])
    assert found[0,].tolist() == [0, 1]


def test_a_quoted_comma_is_text(tmp_path):
    spec = spec_of(single("c", Categorical(("a, b", 'c"d'), ("x", "y"))))
    body = b'"a, b",1\r\n"c""d",2\r\n"a, b, 1\r\nc"d,4\n'
    found = run(tmp_path / "f.csv", body, spec=spec, header=b"c,n", subsets=[(0,)])
    assert found[0,].tolist() == [1, 2]


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"\n", b"SECRET,sex", b"sex,age,sex,SECRET", b'"sex,age', b"\xff\xfes\0e\0x\0"),
        *(b"\x1f\x8b\x08", b"sex,age" + b"," * (lines.MAX_LINE + 1)),
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
        assert "once: age;" in str(caught.value)


def test_a_header_may_have_a_byte_order_mark_quotes_spaces_and_crlf(tmp_path):
    spec = spec_of(single("sex", Boolean()), single("age", Integers(0, 1)), person="id")
    path = tmp_path / "f.csv"
    path.write_bytes(b'\xef\xbb\xbf"sex", age ,other,other,id\r\nyes,1,,,p\r\n')
    check_header(path, spec)
    assert tabulate(path, spec=spec, subsets=[(0, 1)])[0, 1].tolist() == [[0, 0], [0, 1]]


def test_a_missing_file_a_folder_and_a_broken_disk_are_named(tmp_path, monkeypatch):
    spec = spec_of(single("sex", Boolean()))
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(DataError, match="not a file"):
            check_header(path, spec)
    path = tmp_path / "f.csv"
    path.write_bytes(b"sex\nyes\n")

    def broken(*args, **settings):
        raise OSError("CANARY yes")

    monkeypatch.setattr(module, "columns", broken)
    with pytest.raises(DataError) as caught:
        tabulate(path, spec=spec, subsets=[()])
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


def test_progress_ends_at_one(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(b"sex\n" + b"yes\n" * 100)
    seen = []
    tabulate(path, spec=spec_of(single("sex", Boolean())), subsets=[()], progress=seen.append)
    assert seen[-1] == 1.0


def test_subsets_are_increasing_and_their_cells_are_bounded(tmp_path):
    spec = spec_of(*(single(c, Integers(0, 99_999)) for c in "ab"))
    for subset in [(1, 0), (0, 0), (2,), (-1,)]:
        with pytest.raises(ValueError, match="increasing"):
            tabulate(tmp_path / "f.csv", spec=spec, subsets=[subset])
    with pytest.raises(UnsupportedWorkloadError, match="cells"):
        tabulate(tmp_path / "f.csv", spec=spec, subsets=[(0, 1)])


def test_a_large_sparse_table_is_counted_too(tmp_path):
    spec = spec_of(*(single(c, Integers(0, 999)) for c in "ab"))
    found = run(tmp_path / "f.csv", b"5,7\n5,7\n", spec=spec, header=b"a,b", subsets=[(0, 1), (1,)])
    assert found[0, 1][5, 7] == found[0, 1].sum() == found[1,][7] == 2


def test_adult_equals_the_counts_of_pandas():
    path = SHARED / "data" / "adult.csv"
    if not path.exists():
        pytest.skip("the Adult file is not beside the repository")
    sizes = json.loads((SHARED / "data" / "adult-domain.json").read_text())
    names = list(sizes)
    spec = spec_of(*(single(name, Integers(0, size - 1)) for name, size in sizes.items()))
    subsets = [s for r in range(3) for s in itertools.combinations(range(len(names)), r)]
    found = tabulate(path, spec=spec, subsets=subsets)
    frame = pd.read_csv(path)
    assert found[()] == len(frame)
    for subset in subsets[1:]:
        counts = np.zeros([sizes[names[i]] for i in subset], np.int64)
        for cell, count in frame[[names[i] for i in subset]].value_counts().items():
            counts[cell] = count
        np.testing.assert_array_equal(found[subset], counts)


def subsets_up_to(d, size):
    return [own for k in range(size + 1) for own in itertools.combinations(range(d), k)]


@pytest.mark.parametrize("small", [0, 20, 10**6])
def test_every_subset_is_counted_in_a_table_that_holds_it(small, monkeypatch):
    monkeypatch.setattr(module, "_SMALL", small)
    shape = (3, 1, 4, 2, 5, 2)
    subsets = [*subsets_up_to(6, 3), (0, 1, 2, 3, 4), (0, 2)]
    homes = module._homes(subsets, shape)
    assert set(homes) == set(subsets)
    assert all(set(subset) <= set(home) for subset, home in homes.items())
    largest = max(math.prod(shape[i] for i in subset) for subset in subsets)
    assert all(math.prod(shape[i] for i in h) <= max(small, largest) for h in homes.values())


def test_tables_are_merged_only_while_all_of_them_fit(monkeypatch):
    subsets, shape = subsets_up_to(30, 2), (10,) * 30
    merged = set(module._homes(subsets, shape).values())
    assert len(merged) < len(subsets) / 4
    monkeypatch.setattr(module, "MAX_CELLS", 435 * 100)
    assert set(module._homes(subsets, shape).values()) == set(itertools.combinations(range(30), 2))
    monkeypatch.setattr(module, "MAX_CELLS", 435 * 100 - 1)
    with pytest.raises(UnsupportedWorkloadError, match=r"the limit is 43499"):
        module.check_size(subsets, shape)


def test_what_is_planned_can_be_counted():
    assert MAX_TOTAL <= module.MAX_CELLS
