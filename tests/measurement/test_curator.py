"""A measurement is named by all that is public of it, and its folder holds what it was made of."""

import dataclasses
import hashlib
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from specs import unhashed
from town import CSV, GAUSSIAN_SPEC, contents, ok, plan_town

from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.curator import LinearQuery
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Dense, Identity
from dpquery.releases.folder import noisy_files
from dpquery.releases.folder.noisy_files import (
    MeasurementLabel,
    read_measurements,
    values_digest,
    write_measurements,
)
from dpquery.spec.parsing.read import parse
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy

SPEC = """\
dataset: {id: town, version: 1}
privacy: {unit: row, neighbours: add-remove}
budget: {epsilon: 4}
other: drop
domain:
  age: {range: [0, 1]}
  sex: {values: [F, M]}
  pay: {bins: [0, 10, 20]}
workload:
  - name: pairs
    marginals: {ways: 2}
"""
SHAPE = (2, 2, 2)
TABLES = MarginalsStrategy("tables", "laplace", SHAPE, {(0,): 1, (1,): 2})


def ask(spec=SPEC, *, strategy=TABLES, epsilon="1", release=1, classes=None):
    """A question; most of what can differ leaves the noise as it is."""
    parsed = parse(spec, name="town.yaml", files={})
    compiled = compile_spec(parsed)
    if classes is not None:
        compiled = dataclasses.replace(compiled, classes=classes)
    terms = guarantee("laplace", epsilon=Fraction(epsilon), delta=Fraction(0))
    mechanism = calibrated_noise(strategy, privacy=parsed.privacy, guarantee=terms)
    return LinearQuery(parsed, compiled, strategy, mechanism, release)


def product_of(matrix):
    return ProductStrategy("p", "laplace", (Dense(np.array(matrix)), Identity(2), Identity(2)))


def test_all_that_is_public_of_a_linear_release_is_in_its_key():
    same_noise = [
        ask(),
        ask(release=2),
        ask(SPEC.replace("id: town", "id: city")),
        ask(SPEC.replace("version: 1", "version: 2")),
        ask(SPEC.replace("unit: row", "unit: {person: id, max_rows: 1}")),
        ask(SPEC.replace("unit: row", "unit: {person: ssn, max_rows: 1}")),
        ask(SPEC.replace("[0, 1]", "[1, 2]")),
        ask(SPEC.replace("[F, M]", "[M, F]")),
        ask(SPEC.replace("[0, 10, 20]", "[0, 11, 20]")),
        ask(SPEC.replace("age: {", "age: {column: years, ")),
        ask(strategy=MarginalsStrategy("tables", "laplace", SHAPE, {(0,): 2, (1,): 1})),
        ask(strategy=MarginalsStrategy("tables", "laplace", SHAPE, {(0,): 1, (2,): 2})),
        ask(classes=(np.array([1, 0]), np.array([0, 1]), np.array([0, 1]))),
        ask(classes=(np.array([0, 1]), np.array([1, 0]), np.array([0, 1]))),
    ]
    assert {query.mechanism for query in same_noise} == {ask().mechanism}
    products = [
        ask(strategy=product_of(factors)) for factors in ([[2, 1], [1, 2]], [[1, 2], [2, 1]])
    ]
    assert products[0].mechanism == products[1].mechanism
    other_noise = [
        ask(epsilon="2"),
        ask(SPEC.replace("add-remove", "replace")),
        ask(SPEC.replace("unit: row", "unit: {person: id, max_rows: 2}")),
        ask(strategy=MarginalsStrategy("tables", "laplace", SHAPE, {(0,): 1, (1,): 3})),
    ]
    keys = [query.key for query in same_noise + products + other_noise]
    assert len(set(keys)) == len(keys)


def test_what_changes_no_measurement_changes_no_key():
    assert ask().key == ask(SPEC.replace("name: pairs", "name: others")).key
    assert ask().key == ask(SPEC.replace("[F, M]", "{F: women, M: men}")).key
    assert ask().key == ask(SPEC.replace("epsilon: 4", "epsilon: 5")).key


GROUPS = (
    MeasurementLabel("age x sex", 3, 4),
    MeasurementLabel("", 7 << 70, 1),
    MeasurementLabel("age x sex", 2, 2),
)
VALUES = np.array([5, -3, 2**62, -(2**62), 0, 9, -9])


def written(path, values=VALUES, groups=GROUPS):
    write_measurements(path, values, groups, metadata={"dpquery": "{}"})
    return path


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_noisy_values_are_read_back_as_they_were(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(noisy_files, "BATCH_VALUES", batch)
    path = written(tmp_path / "m.parquet")
    read = read_measurements(path, GROUPS, digest=values_digest(VALUES))
    assert np.array_equal(read, VALUES)
    table = pq.read_table(path).to_pydict()
    assert table["attributes"] == ["age x sex"] * 4 + [""] + ["age x sex"] * 2
    assert table["weight"] == ["3"] * 4 + [str(7 << 70)] + ["2"] * 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR2")),
        lambda path: written(path, VALUES + 1),
        lambda path: written(
            path, VALUES[:-1], (*GROUPS[:-1], MeasurementLabel("age x sex", 2, 1))
        ),
        lambda path: written(path, groups=(GROUPS[2], *GROUPS[1:-1], GROUPS[0])),
        lambda path: pq.write_table(pa.table({"value": VALUES}), path),
        lambda path: pq.write_table(pq.read_table(path).slice(1), path),
    ],
)
def test_a_file_that_is_not_what_was_written_is_refused(tmp_path, damage):
    path = written(tmp_path / "m.parquet")
    damage(path)
    with pytest.raises(SpecError, match="dpquery release` again, which is free"):
        read_measurements(path, GROUPS, digest=values_digest(VALUES))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    plan_town(tmp_path, GAUSSIAN_SPEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    ok("release", "data.csv", "--epsilon", "1", "--out", "release")
    return tmp_path / "release"


@pytest.mark.nightly
def test_a_release_holds_its_plan_and_the_noisy_values_that_the_ledger_holds(folder):
    facts = json.loads((folder / "release.json").read_text())
    plan = (folder / "release.plan").read_bytes()
    assert plan == Path("dpquery.plan").read_bytes()
    assert facts["plan"] == hashlib.sha256(plan).hexdigest()
    values = pq.read_table(folder / "measurements.parquet")["value"].to_numpy()
    assert facts["measurements"] == values_digest(values)
    with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
        (commit,) = [e.as_json() for e in ledger.history() if e.as_json()["kind"] == "commit"]
        assert (commit["sha256"], commit["size"]) == (facts["measurements"], len(values))


@pytest.mark.nightly
def test_a_release_from_before_is_completed_by_the_next_run_which_is_free(folder):
    whole = contents(folder)
    facts = unhashed(whole["release.json"])
    del facts["measurements"]
    (folder / "release.json").write_text(json.dumps(facts))
    for name in ("measurements.parquet", "release.plan"):
        (folder / name).unlink()
    ok("error-report", "release")
    Path("data.csv").unlink()
    ok("release", "data.csv", "--epsilon", "1", "--out", "release", "--same")
    assert contents(folder) == whole
    Path("data.csv").write_bytes(CSV)
