"""A release folder holds what it was computed from: the noisy values and the plan, public both."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from town import CSV, GAUSSIAN_SPEC, contents, ok, plan_town

from dpquery.exceptions import SpecError
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.releases.folder import noisy_files
from dpquery.releases.folder.noisy_files import (
    MeasurementLabel,
    read_measurements,
    values_digest,
    write_measurements,
)

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
    facts = json.loads(whole["release.json"])
    del facts["measurements"]
    (folder / "release.json").write_text(json.dumps(facts))
    for name in ("measurements.parquet", "release.plan"):
        (folder / name).unlink()
    ok("error-report", "release")
    Path("data.csv").unlink()
    ok("release", "data.csv", "--epsilon", "1", "--out", "release", "--same")
    assert contents(folder) == whole
    Path("data.csv").write_bytes(CSV)
