"""The key of a release: a canonical text of all that changes what is measured.

Releases of one key are one release, charged once and of the same noise. So a key holds all that is
charged for: whose records, how their columns are coded and counted, who is protected, what is
measured, how it is made private, and the number of the release. Requests that differ in any of it
have different keys. Labels, descriptions, caps and paths are not in it, nor whether a path leads to
text, to Parquet or to a table of a database: id and version name the records, wherever they lie.

A key is the SHA-256 of a text, written field by field by `key_text`. What is counted comes between
as bytes, as many as the columns before them have codes. No class and no attribute of the product is
in the text by its name, so all of them may be renamed.

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

Records have a literal tag and literal names. Values stand as in a Python literal: texts quoted,
numbers exact (a float by the shortest digits that give it back), bytes escaped, tuples in brackets.
So two different values never have one text, and what follows a value cannot be taken for a part of
it.

The text of a value never changes. One thing in it is Python's: a character of a text that Unicode
had not assigned yet when that Python was made is escaped, and later stands for itself.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
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
    Stacked,
    Valued,
)
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.spec import FileFormat, Privacy, Spec
from dpquery.strategy.strategy import WeightedBlock


class KeyText(str):
    """The text of a value, as it stands in a key."""


def key_text(value: object) -> KeyText:
    r"""Return the text of a value: of an array its integers as bytes, without its shape.

    They stand row after row, as little-endian 64-bit ones. TypeError if they are no integers: no
    other array is exact. A number must be of the type of its field: `1` is not `1.0`.

    >>> print(key_text(("a", 1, 0.1, None, True)), key_text((1,)), key_text(np.array([1])))
    ('a', 1, 0.1, None, True) (1,) b'\x01\x00\x00\x00\x00\x00\x00\x00'
    """
    match value:
        case KeyText():
            return value
        case None | int() | np.integer() | np.bool_():
            return KeyText(value)
        case str():
            return KeyText(str.__repr__(value))
        case float():
            return KeyText(float.__repr__(value))
        case Fraction(numerator=above, denominator=below):
            return KeyText(f"Fraction({above}, {below})")
        case np.ndarray():
            return KeyText(repr(integer_bytes(value)))
        case Iterable():
            series = [*map(key_text, value)]
            return KeyText(f"({series[0]},)" if len(series) == 1 else f"({', '.join(series)})")
        case _:
            raise TypeError(f"a key holds nothing of the class {type(value).__name__}")


def write_record(tag: str, **fields: object) -> KeyText:
    """Return the text of named values, in the order given.

    >>> write_record("Integers", low=0, high=9)
    'Integers(low=0, high=9)'
    """
    shown = (f"{name}={key_text(value)}" for name, value in fields.items())
    return KeyText(f"{tag}({', '.join(shown)})")


def integer_bytes(array: Numbers) -> bytes:
    """Return the integers of an array as bytes, which do not say where they end."""
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

    Strategies that measure the same blocks, in the order of the values stored, are one, whatever
    their shape or name.
    """
    request = _request(spec, compiled, _linear_mechanism(mechanism), release)
    return _sha256(
        chain(request, *(_queries(weighted.weight, weighted.block) for weighted in measured))
    )


def rounds_key(
    spec: Spec, compiled: CompiledSpec, *, rounds: RapRounds | TableRounds, release: int
) -> str:
    """Return the key of a release by RAP or by adaptive measurement: 64 hexadecimal digits.

    Adaptive runs over workloads with the same candidates and weights are one, as they measure the
    same.
    """
    if isinstance(rounds, TableRounds):
        request = _request(spec, compiled, _table_rounds(rounds), release)
        return _sha256(chain(request, (rounds.layout.encode(),)))
    request = _request(spec, compiled, _rap_rounds(rounds), release)
    run = f"{rounds.layout} {_rap_settings(rounds.settings)}".encode()
    blocks = (_queries(1, block) for block in compiled.workload.blocks)
    return _sha256(chain(request, (run,), *blocks))


def discovery_key(
    spec: Spec, mechanism: CalibratedNoise, *, sought: str, max_values: int, threshold: int
) -> str:
    """Return the key of a discovery of a column's values: 64 hexadecimal digits.

    Sought are "values", or what else the numbers of persons are of; the threshold is 0 of classes.
    """
    found = write_record(
        "Discovery" if sought == "values" else f"Discovery of {sought}",
        column=spec.domain.columns[0].name,
        person=spec.privacy.person,
        neighbours=spec.privacy.neighbours,
        max_values=max_values,
        threshold=threshold,
        threshold_delta=mechanism.guarantee.threshold,
    )
    dataset = write_record("Dataset", id=spec.dataset.id, version=spec.dataset.version)
    parts = (dataset, found, _linear_mechanism(mechanism), *_file(spec.file))
    return _sha256([b"dpquery discovery key 1;", key_text(parts).encode()])


def _sha256(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _request(spec: Spec, compiled: CompiledSpec, mechanism: str, release: int) -> Iterator[bytes]:
    """Yield the first part of every key: dataset, domain, unit, mechanism, release, classes."""
    # The population's rows and its parent are not part of what is counted.
    dataset = write_record("Dataset", id=spec.dataset.id, version=spec.dataset.version)
    domain = KeyText(f"[{', '.join(map(_attribute, spec.domain.attributes))}]")
    unit = _unit(spec.privacy)
    parts = (dataset, domain, unit, mechanism, release, *_file(spec.file))
    yield key_text(parts).encode()
    for classes in compiled.classes:
        yield integer_bytes(classes) + b";"


def _unit(privacy: Privacy) -> KeyText:
    """Write the protected unit. The delta is in the guarantee."""
    unit = [privacy.person, privacy.max_rows, privacy.neighbours]
    if privacy.person is not None and privacy.keep != "first":  # which was meant before the field
        unit.append(KeyText(f"keep={key_text(privacy.keep)}"))
    if (weight := privacy.weight) is not None:
        of = {"column": weight.name, "at_most": weight.at_most, "step": weight.step}
        of |= {"squares": True} if privacy.measures_squares else {}
        if (given := weight.replicates) is not None:
            of |= {"replicates": given.names, "differences": given.at_most}
        unit.append(write_record("RecordWeight", **of))
    return key_text(unit)


def _file(file: FileFormat) -> list[KeyText]:
    """Write the fields of a file's format that are not the default, as one part; or none."""
    usual = FileFormat()
    names = ("delimiter", "encoding", "decimal", "quote", "newlines_in_quotes")
    parts = ((name, getattr(file, name), getattr(usual, name)) for name in names)
    given = {name: value for name, value, default in parts if value != default}
    return [KeyText(f"file={write_record('FileFormat', **given)}")] if given else []


def _attribute(attribute: Attribute) -> str:
    """Write the coding of an attribute's columns, or how many rows of persons are told apart."""
    if attribute.in_data:
        return f"[{', '.join(map(_column, attribute.columns))}]"
    # All codes but those of more rows, and of a person's other rows.
    return write_record("PersonRows", most=attribute.length - 1)


def _column(column: Column) -> KeyText:
    """Write the coding of a column's texts; its labels do not matter to that.

    Texts that are counted and those that are shown have the same code: what is asked of it is in
    the queries.
    """
    match column.kind:
        case Categorical(values=values, also=()):
            kind = key_text(values)
        case Categorical(values=values, also=also):
            kind = write_record("Categorical", values=values, also=also)
        case Integers(low=low, high=high):
            kind = write_record("Integers", low=low, high=high)
        case Bins(edges=edges):
            kind = write_record("Bins", edges=map(float, edges))
        case Boolean(true=true, false=false):
            kind = write_record("Boolean", true=true, false=false)
        case Dates(first=first, last=last, by=by, format=dates):
            ends = {"first": first.isoformat(), "last": last.isoformat()}
            kind = write_record("Dates", **ends, by=by, format=dates.text)
        case _:
            assert_never(column.kind)
    coding = [column.name, kind, not column.drops]
    if column.number is not None:
        thousands, mark, sign = column.number.thousands, column.number.decimal, column.number.sign
        coding.append(write_record("NumberFormat", thousands=thousands, decimal=mark, sign=sign))
    return key_text(coding)


def _guarantee(guarantee: Guarantee) -> KeyText:
    return write_record(
        "Guarantee",
        kind=guarantee.kind,
        amount=guarantee.amount,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
    )


def _linear_mechanism(mechanism: CalibratedNoise) -> KeyText:
    """Write the noise of a linear strategy; its law where that is not the first one of its kind."""
    law = mechanism.guarantee.law
    return write_record(
        "Mechanism",
        guarantee=_guarantee(mechanism.guarantee),
        shift=mechanism.shift,
        sensitivity=mechanism.sensitivity,
        scale=float(mechanism.scale),
        **({"law": law.name} if law.tagged else {}),
    )


def _rap_rounds(rounds: RapRounds) -> KeyText:
    return write_record(
        "RapMechanism",
        guarantee=_guarantee(rounds.guarantee),
        settings=_rap_settings(rounds.settings),
        records=rounds.records,
        replace=rounds.replace,
        total=rounds.total,
        total_rho=rounds.total_rho,
        selection_rho=rounds.selection_rho,
        measurement_rho=rounds.measurement_rho,
        rate=rounds.rate,
        whole=rounds.whole,
    )


def _table_rounds(rounds: TableRounds) -> KeyText:
    candidates, closing = rounds.candidates, dict[str, object]()
    if rounds.measured_items:
        closing = {"closing_rho": rounds.closing_rho, "distances": rounds.measured_items}
    return write_record(
        "AdaptiveTables",
        guarantee=_guarantee(rounds.guarantee),
        records=rounds.records,
        replace=rounds.replace,
        total=rounds.total,
        unit=rounds.unit,
        one_way_rho=rounds.first_rho,
        measured_share=MEASURED_SHARE,
        dearer=DEARER,
        subsets=candidates.subsets,
        sizes=candidates.sizes,
        weights=candidates.weights,
        **closing,
    )


def _rap_settings(settings: RapSettings) -> KeyText:
    return write_record(
        "RapSettings",
        rounds=settings.rounds,
        selected=settings.selected,
        relaxed_rows=settings.relaxed_rows,
        seed=settings.seed,
    )


def _queries(weight: int, block: Block | CellClassBlock) -> Iterator[bytes]:
    """Yield a block of queries: what its rows are multiplied by, how they combine, its factors.

    Before a block over classes of cells stands the class of every cell.
    """
    if isinstance(block, CellClassBlock):
        classes = block.classes
        yield key_text(("cell-classes", classes.attributes, classes.codes)).encode()
        block = block.inner
    yield key_text((weight, block.attributes, block.terms)).encode()
    yield from (key_text(_factor(factor)).encode() for factor in block.factors)


def _factor(factor: Factor) -> tuple[object, ...]:
    """Return the integers of a factor, or its shape where they follow from that, as one tuple."""
    shape = factor.shape
    if type(factor) in _BY_SHAPE:
        return (_BY_SHAPE[type(factor)], *shape)
    match factor:
        case Dense(matrix=matrix):
            return "dense", shape, "<i8", matrix
        case PIdentity(diagonal=diagonal, rows=rows):
            return "p-identity", shape, diagonal, rows
        case BlockPIdentity(diagonal=diagonal, inner=inner, outer=outer, size=size):
            return "block-p-identity", shape, size, diagonal, inner, outer
        case Hierarchy(sizes=sizes, weights=weights):
            return "hierarchy", shape, sizes, weights
        case Tree(parents=parents, weights=weights):
            return "tree", shape, parents, weights
        case ListedRanges(listed=bounds):
            return "ranges", shape, bounds
        case Groups(matrix=matrix):
            return "groups", shape, matrix.indices, matrix.indptr
        case IdentityRows(codes=codes):
            return "identity-rows", shape, codes
        case Stacked(parts=parts):
            return ("stacked", *map(_factor, parts))
        case Columns(inner=inner, codes=codes):
            return "columns", _factor(inner), codes
        case OrbitRows(axes=axes, cores=cores):
            return "orbits", [axis.place for axis in axes], cores.items()
        case Spread(inner=inner, classes=classes):
            return "merged", _factor(inner), classes
        case Valued(inner=inner, values=values):
            return "valued", _factor(inner), values
        case _:
            raise TypeError(f"a factor of the class {type(factor).__name__} has no tag in a key")
