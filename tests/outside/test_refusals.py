"""What is refused, or said, before anything is charged; and what no message ever repeats."""

import gzip
import json
from pathlib import Path

import pytest
from cli_support import run

SPEC = """\
dataset: {id: ops}
privacy: {unit: row}
budget: {epsilon: 10}
domain:
  x: {values: [a, b]}
workload:
  - {name: t, product: {x: identity}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of one's own with a spec."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("s.yaml").write_text(SPEC)
    return tmp_path


def charges():
    events = json.loads(run("ledger", "history", "--json").out)
    return sum(event["kind"] == "reserve" for event in events)


@pytest.mark.parametrize("content", [b"x,y\n", b"x,y", b"x,y\n\n\n", b"\xef\xbb\xbfx,y\r\n"])
def test_a_header_alone_is_no_record(here, content):
    Path("d.csv").write_bytes(content)
    done = run("check", "d.csv", "s.yaml", "--to-pipe")
    assert done.code == 1
    assert "d.csv: there is no record" in done.out
    assert "every record" not in done.out
    assert "% of its lines" not in done.out


@pytest.mark.parametrize("name", ["d.csv", "d.csv.gz", "d.parquet", "d.arrow", "folder"])
def test_an_empty_file_is_refused_before_the_charge(here, name):
    if name == "folder":
        Path(name).mkdir()
        Path(name, "empty.csv").touch()
    else:
        Path(name).write_bytes(gzip.compress(b"") if name.endswith("gz") else b"")
    if "csv" in name:
        assert "is empty: no header and no record" in run("check", name, "s.yaml", "--to-pipe").out
    assert run("check", name, "s.yaml", "--to-pipe").code == 1
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
    assert run("release", name, "--epsilon", 1).code == 6
    assert charges() == 0
