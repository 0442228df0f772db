"""The key of a release: the name under which the ledger holds what was measured and paid for.

Releases of one key are one release, charged once and of the same noise. So a key holds all that is
charged for: whose records, how their columns are coded and counted, who is protected, what is
measured, how it is made private, and the number of the release. Requests that differ in any of it
have different keys. Labels, descriptions, caps and paths are not in it.

A key is the SHA-256 of a text, written field by field in the notation of `canonical`. What is
counted comes between as bytes, as many as the columns before them have codes. No class and no
attribute of the product is in the text by its name, so all of them may be renamed.

A key never changes, or users would be charged again for a release that they have. The text here is
version 1: byte for byte what the first ledgers were written with. It could be tidier; but then
each release would have two names for ever, and be looked up by both. The text of version 1 begins
with `(Dataset(`, of a later one with `dpquery release key N;`. What is new keeps all older keys:

* A new kind of thing has a tag of its own: a kind of column, a factor, a source that is not one
  CSV file, a mechanism, a noise, a guarantee of another accounting (`kind`), a block of queries
  that are not counts, such as sums.
* A new field of a kind is written with its name, behind the others, and left out where it has the
  value that was meant before there was the field. A parameter of noise is a field like any other.
* Only another meaning of what is written already takes another version: other answers to the same
  blocks, another order of the values stored, another rounding. For RAP, `layout` says all that. A
  release is then looked up by its older key too, before anything is charged; as it is where a new
  accounting draws less noise for the same guarantee, by the mechanism of the old one.

test_release_key holds the keys of releases of every kind, and that each field is in the key.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import assert_never

from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.canonical import (
    fraction,
    integer_bytes,
    integers,
    number,
    numbers,
    optional,
    real,
    record,
    series,
    text,
    texts,
    truth,
)
from dpquery.measurement.mechanism import Mechanism
from dpquery.measurement.rap_mechanism import RapMechanism
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.factors import (
    Centered,
    Dense,
    Factor,
    Groups,
    Identity,
    Ones,
    PIdentity,
    Stacked,
)
from dpquery.operators.hierarchies import Haar, Hierarchy
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges
from dpquery.spec.domain import Bins, Boolean, Categorical, Column, Integers
from dpquery.spec.model import Dataset, Privacy, Spec
from dpquery.strategy.rap import RapSettings
from dpquery.strategy.strategies import Measurement

_BY_SHAPE: dict[type[Factor], str] = {
    Identity: "identity",
    Ones: "ones",
    Centered: "centered",
    Prefix: "prefix",
    AllRanges: "all-ranges",
    WidthRanges: "width",
    Haar: "haar",
}


def linear_key(
    spec: Spec,
    compiled: CompiledSpec,
    *,
    measured: Sequence[Measurement],
    mechanism: Mechanism,
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
    return _sha256(chain(request, *(_queries(own.weight, own.block) for own in measured)))


def rap_key(
    spec: Spec,
    compiled: CompiledSpec,
    *,
    mechanism: RapMechanism,
    settings: RapSettings,
    layout: str,
    release: int,
) -> str:
    """Return the key of a release by relaxed adaptive projection: 64 hexadecimal digits.

    Args:
        spec: dataset, domain and protected unit.
        compiled: the workload, and the classes of codes that are counted.
        mechanism: how every round is made private.
        settings: of the run.
        layout: the version of the rules by which rounds are run and stored.
        release: number of the release.
    """
    request = _request(spec, compiled, _rap_mechanism(mechanism), release)
    run = f"{layout} {_rap_settings(settings)}".encode()
    blocks = (_queries(1, block) for block in compiled.workload.blocks)
    return _sha256(chain(request, (run,), *blocks))


def _sha256(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _request(spec: Spec, compiled: CompiledSpec, mechanism: str, release: int) -> Iterator[bytes]:
    """Yield what every key begins with: of whom, by which codes, for whom, how, and which one."""
    attributes = (map(_column, attribute.columns) for attribute in spec.domain.attributes)
    domain = ", ".join(f"[{', '.join(columns)}]" for columns in attributes)
    dataset, unit = _dataset(spec.dataset), _unit(spec.privacy)
    yield series([dataset, f"[{domain}]", unit, mechanism, number(release)]).encode()
    for classes in compiled.classes:
        yield integer_bytes(classes) + b";"


def _dataset(dataset: Dataset) -> str:
    """Name the population; its rows and its parent are not part of what is counted."""
    return record("Dataset", id=text(dataset.id), version=text(dataset.version))


def _unit(privacy: Privacy) -> str:
    """Name who is protected. The delta is in the guarantee."""
    person = optional(None if privacy.person is None else text(privacy.person))
    return series([person, number(privacy.max_rows), text(privacy.neighbours)])


def _column(column: Column) -> str:
    """Write how a column's texts become codes; its labels do not matter to that."""
    match column.kind:
        case Categorical(values=values):
            kind = texts(values)
        case Integers(low=low, high=high):
            kind = record("Integers", low=number(low), high=number(high))
        case Bins(edges=edges):
            kind = record("Bins", edges=series(map(real, edges)))
        case Boolean(true=true, false=false):
            kind = record("Boolean", true=texts(true), false=texts(false))
        case _:
            assert_never(column.kind)
    return series([text(column.name), kind, truth(column.other)])


def _guarantee(guarantee: Guarantee) -> str:
    return record(
        "Guarantee",
        kind=text(guarantee.kind),
        amount=fraction(guarantee.amount),
        epsilon=fraction(guarantee.epsilon),
        delta=fraction(guarantee.delta),
    )


def _linear_mechanism(mechanism: Mechanism) -> str:
    return record(
        "Mechanism",
        guarantee=_guarantee(mechanism.guarantee),
        shift=number(mechanism.shift),
        sensitivity=number(mechanism.sensitivity),
        scale=real(mechanism.scale),
    )


def _rap_mechanism(mechanism: RapMechanism) -> str:
    total, whole = mechanism.total, mechanism.whole
    return record(
        "RapMechanism",
        guarantee=_guarantee(mechanism.guarantee),
        settings=_rap_settings(mechanism.settings),
        records=number(mechanism.records),
        replace=truth(mechanism.replace),
        total=optional(None if total is None else number(total)),
        total_rho=fraction(mechanism.total_rho),
        selection_rho=fraction(mechanism.selection_rho),
        measurement_rho=fraction(mechanism.measurement_rho),
        rate=fraction(mechanism.rate),
        whole=optional(None if whole is None else number(whole)),
    )


def _rap_settings(settings: RapSettings) -> str:
    return record(
        "RapSettings",
        rounds=number(settings.rounds),
        selected=number(settings.selected),
        relaxed_rows=number(settings.relaxed_rows),
        seed=number(settings.seed),
    )


def _queries(weight: int, block: Block) -> Iterator[bytes]:
    """Yield a block of queries: what its rows are multiplied by, how they combine, its factors."""
    terms = (
        series([number(coefficient), series(map(truth, factors))])
        for coefficient, factors in block.terms
    )
    yield series([number(weight), numbers(block.attributes), series(terms)]).encode()
    yield from (_factor(factor).encode() for factor in block.factors)


def _factor(factor: Factor) -> str:
    """Write the integers of a factor, or its shape where they follow from that."""
    if type(factor) in _BY_SHAPE:
        return series([text(_BY_SHAPE[type(factor)]), *map(number, factor.shape)])
    shape = numbers(factor.shape)
    match factor:
        case Dense(matrix=matrix):
            return series([text("dense"), shape, text("<i8"), integers(matrix)])
        case PIdentity(diagonal=diagonal, rows=rows):
            return series([text("p-identity"), shape, integers(diagonal), integers(rows)])
        case Hierarchy(sizes=sizes, weights=weights):
            return series([text("hierarchy"), shape, numbers(sizes), numbers(weights)])
        case ListedRanges(listed=bounds):
            return series([text("ranges"), shape, integers(bounds)])
        case Groups(matrix=matrix):
            codes, ends = integers(matrix.indices), integers(matrix.indptr)
            return series([text("groups"), shape, codes, ends])
        case Stacked(parts=parts):
            return series([text("stacked"), *map(_factor, parts)])
        case Columns(inner=inner, codes=codes):
            return series([text("columns"), _factor(inner), integers(codes)])
        case _:
            raise TypeError(f"a factor of the class {type(factor).__name__} has no tag in a key")
