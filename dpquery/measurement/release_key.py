"""The key of a release: a canonical text of all that changes what is measured.

Releases of one key are one release, charged once and of the same noise. So a key holds all that is
charged for: whose records, how their columns are coded and counted, who is protected, what is
measured, how it is made private, and the number of the release. Requests that differ in any of it
have different keys. Labels, descriptions, caps and paths are not in it, nor whether a path leads to
text, to Parquet or to a table of a database: id and version name the records, wherever they lie.

A key is the SHA-256 of a text, written field by field in the notation of `canonical`. What is
counted comes between as bytes, as many as the columns before them have codes. No class and no
attribute of the product is in the text by its name, so all of them may be renamed.

A key never changes, or users would be charged again for a release that they have. The text here is
version 1: byte for byte what the first ledgers were written with. It could be tidier; but then
each release would have two names for ever, and be looked up by both. The text of version 1 begins
with `(Dataset(`, of a later one with `dpquery release key N;`. What is new keeps all older keys:

* A new kind of thing has a tag of its own: a kind of column, a factor, a mechanism, a noise, a
  guarantee of another accounting (`kind`), a block of queries that are not counts, such as sums.
* A new field of a kind is written with its name, behind the others, and left out where it has the
  value that was meant before there was the field. A parameter of noise is a field like any other.
* Only another meaning of what is written already takes another version: other answers to the same
  blocks, another order of the values stored, another rounding. For RAP, `layout` says all that. A
  release is then looked up by its older key too, before anything is charged; as it is where a new
  accounting draws less noise for the same guarantee, by the mechanism of the old one.

How a text is read is not in a key, beyond what the spec declares of it. Since lists of values read
`01` as `1`, a new count may find more; what was measured and paid for before stays what it is, and
is found by the same key.

test_release_key holds the keys of releases of every kind, and that each field is in the key.

Canonical text of values, unambiguous where several follow each other; keys are its hash.

Records have a literal tag and literal names; no name follows a class or an attribute, which may be
called otherwise tomorrow. Values stand as in a Python literal: texts quoted, numbers exact (a float
by the shortest digits that give it back), bytes escaped, tuples in brackets. So two different
values never have one text, and what follows a value cannot be taken for a part of it.

The text of a value never changes. One thing in it is Python's: a character of a text that Unicode
had not assigned yet when that Python was made is escaped, and later stands for itself.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
from operator import index
from typing import assert_never

import numpy as np

from dpquery.arrays import Numbers
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.rounds.queries import RapRounds
from dpquery.measurement.rounds.tables import DEARER, MEASURED_SHARE, TableRounds
from dpquery.operators.blocks import Block
from dpquery.operators.cells import CellClassBlock, OrbitRows, Spread
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.factors import (
    Centered,
    Dense,
    Factor,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    PIdentity,
    Stacked,
    Valued,
)
from dpquery.operators.p_identity import BlockPIdentity
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.spec import Dataset, FileFormat, Privacy, Spec
from dpquery.strategy.strategy import WeightedBlock


def write_record(tag: str, **fields: str) -> str:
    """Return the text of named fields, each already written, in the order given.

    >>> write_record("Integers", low=write_number(0), high=write_number(9))
    'Integers(low=0, high=9)'
    """
    return f"{tag}({', '.join(f'{name}={value}' for name, value in fields.items())})"


def write_series(values: Iterable[str]) -> str:
    """Return the text of a tuple of values that are already written.

    >>> write_series([]), write_series(["1"]), write_series(["1", "2"])
    ('()', '(1,)', '(1, 2)')
    """
    written = list(values)
    return f"({written[0]},)" if len(written) == 1 else f"({', '.join(written)})"


def write_text(value: str) -> str:
    """Return a text in quotes."""
    return str.__repr__(value)


def write_texts(values: Iterable[str]) -> str:
    """Return a tuple of texts."""
    return write_series(write_text(value) for value in values)


def write_number(value: int) -> str:
    """Return a whole number, of numpy's too."""
    return str(index(value))


def write_numbers(values: Iterable[int]) -> str:
    """Return a tuple of whole numbers."""
    return write_series(write_number(value) for value in values)


def write_real(value: float) -> str:
    """Return a floating-point number, exactly."""
    return repr(float(value))


def write_fraction(value: Fraction) -> str:
    """Return a fraction in lowest terms."""
    return f"Fraction({value.numerator}, {value.denominator})"


def write_truth(value: bool) -> str:
    """Return True or False."""
    return "True" if value else "False"


def write_optional(written: str | None) -> str:
    """Return what is written, or None."""
    return "None" if written is None else written


def write_integers(array: Numbers) -> str:
    """Return the integers of an array, row after row, as little-endian 64-bit ones.

    Its shape is not in the text. TypeError if they are not integers: no other array is exact.
    """
    return repr(integer_bytes(array))


def integer_bytes(array: Numbers) -> bytes:
    """Return the same as bytes, which do not say where they end."""
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"a key is made of integers, not of {array.dtype}")
    return np.ascontiguousarray(array, dtype="<i8").tobytes()


_BY_SHAPE: dict[type[Factor], str] = {
    Identity: "identity",
    Ones: "ones",
    Centered: "centered",
    Prefix: "prefix",
    AllRanges: "all-ranges",
    WidthRanges: "width",
}


def linear_key(
    spec: Spec,
    compiled: CompiledSpec,
    *,
    measured: Sequence[WeightedBlock],
    mechanism: CalibratedNoise,
    release: int,
) -> str:
    """Return the key of a release by a linear strategy: 64 hexadecimal digits.

    Args:
        spec: dataset, domain and protected unit.
        compiled: the classes of codes that are counted.
        measured: the strategy's weighted blocks, in the order of the values stored. Strategies
            that measure the same are one, whatever their shape or name.
        mechanism: how the values are made private.
        release: number of the release.
    """
    request = _request(spec, compiled, _linear_mechanism(mechanism), release)
    return _sha256(
        chain(request, *(_queries(weighted.weight, weighted.block) for weighted in measured))
    )


def rounds_key(
    spec: Spec, compiled: CompiledSpec, *, rounds: RapRounds | TableRounds, release: int
) -> str:
    """Return the key of a release by RAP or by adaptive measurement: 64 hexadecimal digits.

    Args:
        spec: dataset, domain and protected unit.
        compiled: the workload, and the classes of codes that are counted. Adaptive runs over
            workloads with the same candidates and weights are one, as they measure the same.
        rounds: how every round is made private, and what it may measure.
        release: number of the release.
    """
    if isinstance(rounds, TableRounds):
        request = _request(spec, compiled, _table_rounds(rounds), release)
        return _sha256(chain(request, (rounds.layout.encode(),)))
    request = _request(spec, compiled, _rap_rounds(rounds), release)
    run = f"{rounds.layout} {_rap_settings(rounds.settings)}".encode()
    blocks = (_queries(1, block) for block in compiled.workload.blocks)
    return _sha256(chain(request, (run,), *blocks))


def _sha256(parts: Iterable[bytes]) -> str:
    """Return the SHA-256 of all parts together, in hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _request(spec: Spec, compiled: CompiledSpec, mechanism: str, release: int) -> Iterator[bytes]:
    """Yield the first part of every key: dataset, domain, unit, mechanism, release, classes."""
    domain = ", ".join(map(_attribute, spec.domain.attributes))
    dataset, unit = _dataset(spec.dataset), _unit(spec.privacy)
    series = [dataset, f"[{domain}]", unit, mechanism, write_number(release), *_file(spec.file)]
    yield write_series(series).encode()
    for classes in compiled.classes:
        yield integer_bytes(classes) + b";"


def _dataset(dataset: Dataset) -> str:
    """Write the population's name; its rows and its parent are not part of what is counted."""
    return write_record("Dataset", id=write_text(dataset.id), version=write_text(dataset.version))


def _unit(privacy: Privacy) -> str:
    """Write the protected unit. The delta is in the guarantee."""
    person = write_optional(None if privacy.person is None else write_text(privacy.person))
    unit = [person, write_number(privacy.max_rows), write_text(privacy.neighbours)]
    if privacy.person is not None and privacy.keep != "first":  # which was meant before the field
        unit.append(f"keep={write_text(privacy.keep)}")
    return write_series(unit)


def _file(file: FileFormat) -> list[str]:
    """Write the fields of a file's format that are not the default, as one part; or none."""
    default = FileFormat()
    texts = {
        name: write_text(value)
        for name in ("delimiter", "encoding", "decimal", "quote")
        if (value := getattr(file, name)) != getattr(default, name)
    }
    if file.newlines_in_quotes:
        texts["newlines_in_quotes"] = write_truth(file.newlines_in_quotes)
    return [f"file={write_record('FileFormat', **texts)}"] if texts else []


def _attribute(attribute: Attribute) -> str:
    """Write the coding of an attribute's columns, or how many rows of persons are told apart."""
    if attribute.in_data:
        return f"[{', '.join(map(_column, attribute.columns))}]"
    # All codes but those of more rows, and of a person's other rows.
    return write_record("PersonRows", most=write_number(attribute.length - 1))


def _column(column: Column) -> str:
    """Write the coding of a column's texts; its labels do not matter to that.

    Texts that are counted and those that are shown have the same code: what is asked of it is in
    the queries.
    """
    match column.kind:
        case Categorical(values=values, also=()):
            kind = write_texts(values)
        case Categorical(values=values, also=also):
            others = write_series(map(write_texts, also))
            kind = write_record("Categorical", values=write_texts(values), also=others)
        case Integers(low=low, high=high):
            kind = write_record("Integers", low=write_number(low), high=write_number(high))
        case Bins(edges=edges):
            kind = write_record("Bins", edges=write_series(map(write_real, edges)))
        case Boolean(true=true, false=false):
            kind = write_record("Boolean", true=write_texts(true), false=write_texts(false))
        case Dates(first=first, last=last, by=by, format=date_format):
            kind = write_record(
                "Dates",
                first=write_text(first.isoformat()),
                last=write_text(last.isoformat()),
                by=write_text(by),
                format=write_text(date_format.text),
            )
        case _:
            assert_never(column.kind)
    coding = [write_text(column.name), kind, write_truth(not column.drops)]
    if column.number is not None:
        written = write_record(
            "NumberFormat",
            thousands=write_text(column.number.thousands),
            decimal=write_text(column.number.decimal),
            sign=write_text(column.number.sign),
        )
        coding.append(written)
    return write_series(coding)


def _guarantee(guarantee: Guarantee) -> str:
    """Write a privacy guarantee, exactly."""
    return write_record(
        "Guarantee",
        kind=write_text(guarantee.kind),
        amount=write_fraction(guarantee.amount),
        epsilon=write_fraction(guarantee.epsilon),
        delta=write_fraction(guarantee.delta),
    )


def _linear_mechanism(mechanism: CalibratedNoise) -> str:
    """Write the noise of a linear strategy; its law where that is not the first one of its kind."""
    law = mechanism.guarantee.law
    return write_record(
        "Mechanism",
        guarantee=_guarantee(mechanism.guarantee),
        shift=write_number(mechanism.shift),
        sensitivity=write_number(mechanism.sensitivity),
        scale=write_real(mechanism.scale),
        **({"law": write_text(law)} if law == "rounded" else {}),
    )


def _rap_rounds(rounds: RapRounds) -> str:
    """Write the budget and noise of a run of RAP."""
    total, whole = rounds.total, rounds.whole
    return write_record(
        "RapMechanism",
        guarantee=_guarantee(rounds.guarantee),
        settings=_rap_settings(rounds.settings),
        records=write_number(rounds.records),
        replace=write_truth(rounds.replace),
        total=write_optional(None if total is None else write_number(total)),
        total_rho=write_fraction(rounds.total_rho),
        selection_rho=write_fraction(rounds.selection_rho),
        measurement_rho=write_fraction(rounds.measurement_rho),
        rate=write_fraction(rounds.rate),
        whole=write_optional(None if whole is None else write_number(whole)),
    )


def _table_rounds(rounds: TableRounds) -> str:
    """Write the budget and candidates of an adaptive run, and what its closing part measures."""
    candidates, closing = rounds.candidates, {}
    if rounds.measured_items:
        closing = {
            "closing_rho": write_fraction(rounds.closing_rho),
            "distances": write_series(map(write_numbers, rounds.measured_items)),
        }
    return write_record(
        "AdaptiveTables",
        guarantee=_guarantee(rounds.guarantee),
        records=write_number(rounds.records),
        replace=write_truth(rounds.replace),
        total=write_optional(None if rounds.total is None else write_number(rounds.total)),
        unit=write_fraction(rounds.unit),
        one_way_rho=write_fraction(rounds.first_rho),
        measured_share=write_fraction(MEASURED_SHARE),
        dearer=write_number(DEARER),
        subsets=write_series(map(write_numbers, candidates.subsets)),
        sizes=write_numbers(candidates.sizes),
        weights=write_numbers(candidates.weights),
        **closing,
    )


def _rap_settings(settings: RapSettings) -> str:
    """Write the rounds and sizes of a run of RAP."""
    return write_record(
        "RapSettings",
        rounds=write_number(settings.rounds),
        selected=write_number(settings.selected),
        relaxed_rows=write_number(settings.relaxed_rows),
        seed=write_number(settings.seed),
    )


def _queries(weight: int, block: Block | CellClassBlock) -> Iterator[bytes]:
    """Yield a block of queries: what its rows are multiplied by, how they combine, its factors.

    Before a block over classes of cells stands the class of every cell.
    """
    if isinstance(block, CellClassBlock):
        attributes, codes = block.classes.attributes, block.classes.codes
        yield _tagged("cell-classes", write_numbers(attributes), write_integers(codes)).encode()
        block = block.inner
    terms = (
        write_series([write_number(coefficient), write_series(map(write_truth, factors))])
        for coefficient, factors in block.terms
    )
    yield write_series(
        [write_number(weight), write_numbers(block.attributes), write_series(terms)]
    ).encode()
    yield from (_factor(factor).encode() for factor in block.factors)


def _tagged(tag: str, *fields: str) -> str:
    """Write a tag and fields, already written, as one tuple."""
    return write_series([write_text(tag), *fields])


def _factor(factor: Factor) -> str:
    """Write the integers of a factor, or its shape where they follow from that."""
    if type(factor) in _BY_SHAPE:
        return _tagged(_BY_SHAPE[type(factor)], *map(write_number, factor.shape))
    shape = write_numbers(factor.shape)
    match factor:
        case Dense(matrix=matrix):
            return write_series(
                [write_text("dense"), shape, write_text("<i8"), write_integers(matrix)]
            )
        case PIdentity(diagonal=diagonal, rows=rows):
            return write_series(
                [write_text("p-identity"), shape, write_integers(diagonal), write_integers(rows)]
            )
        case BlockPIdentity(diagonal=diagonal, inner=inner, outer=outer, size=size):
            parts = map(write_integers, (diagonal, inner, outer))
            return _tagged("block-p-identity", shape, write_number(size), *parts)
        case Hierarchy(sizes=sizes, weights=weights):
            return write_series(
                [write_text("hierarchy"), shape, write_numbers(sizes), write_numbers(weights)]
            )
        case Tree(parents=parents, weights=weights):
            levels = (write_series(map(write_integers, level)) for level in (parents, weights))
            return _tagged("tree", shape, *levels)
        case ListedRanges(listed=bounds):
            return _tagged("ranges", shape, write_integers(bounds))
        case Groups(matrix=matrix):
            codes, ends = write_integers(matrix.indices), write_integers(matrix.indptr)
            return _tagged("groups", shape, codes, ends)
        case IdentityRows(codes=codes):
            return _tagged("identity-rows", shape, write_integers(codes))
        case Stacked(parts=parts):
            return _tagged("stacked", *map(_factor, parts))
        case Columns(inner=inner, codes=codes):
            return _tagged("columns", _factor(inner), write_integers(codes))
        case OrbitRows(axes=axes, cores=cores):
            places = write_series([write_integers(axis.place) for axis in axes])
            by_component = [
                write_series([write_numbers(b), write_integers(core)]) for b, core in cores.items()
            ]
            return _tagged("orbits", places, write_series(by_component))
        case Spread(inner=inner, classes=classes):
            return _tagged("merged", _factor(inner), write_integers(classes))
        case Valued(inner=inner, values=values):
            return _tagged("valued", _factor(inner), write_integers(values))
        case _:
            raise TypeError(f"a factor of the class {type(factor).__name__} has no tag in a key")
