"""Tables on Spark are counted as on one machine, in any partitions, and nothing is said of them."""

import datetime
import decimal
import math
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import CANARY
from engines import LOCAL, SPARK, connect_server, spark_running
from scipy.stats import chisquare
from specs import assert_equal, moved, single, spec_of, written
from test_text_sources import LOGS
from town import CSV, PERSON_SPEC, SPEC, ended, kinds, ok, plan_town, run, spent, start

from dpquery.exceptions import DataError
from dpquery.measurement.counting.engines import spark as spark_session
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import Bins, Boolean, Categorical, Dates, Integers
from dpquery.spec.spec import FileFormat

ALL = [(), (0,), (1,), (0, 1)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with spark_running(tmp_path_factory.mktemp("spark")) as session:
        yield session


def parts(table, folder, number):
    """Write a table as some Parquet files of several row groups, and return where they lie."""
    folder.mkdir(exist_ok=True)
    for k in range(number):
        size = -(-table.num_rows // number)
        pq.write_table(table.slice(k * size, size), folder / f"{k}.parquet", row_group_size=5)
    return [f"spark:{folder}/*.parquet"]


def both(table, folder, spec, subsets, number=3):
    """Return the tables of Spark and of this machine."""
    location = parts(table, folder, number)
    check_header(location, spec)
    return (
        tabulate(location, spec=spec, subsets=subsets),
        tabulate(folder, spec=spec, subsets=subsets),
    )


NOON = datetime.datetime(2024, 2, 29, 12, 30)
VALUES = {
    "int8": (pa.int8(), [1, -1, None]),
    "uint64": (pa.uint64(), [2**64 - 1, 0, 3]),
    "float": (pa.float64(), [1.0, 1.5, -0.0, 0.1, 12345678.0, math.nan, math.inf, None]),
    "narrow": (pa.float32(), [0.1, 1.5, None, 16777216.0]),
    "bool": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), ["M", " F ", "", None, "a\nb", '"', "\0", "é", "1.0", "x" * 3000]),
    "bytes": (pa.binary(), [b"\xff", b"M", None]),
    "dict": (pa.dictionary(pa.int8(), pa.string()), ["F", None, "M"]),
    "exact": (pa.decimal128(9, 2), [decimal.Decimal("1.50"), decimal.Decimal(0), None]),
    "day": (pa.date32(), [datetime.date(2024, 2, 29), datetime.date(1, 1, 1), None]),
    "time": (pa.timestamp("us"), [NOON, None]),
    "none": (pa.null(), [None]),
}
YEAR = Dates(datetime.date(2024, 1, 1), datetime.date(2024, 12, 31), "month", DateFormat())
DECLARED = {
    "int8": Integers(-1, 1),
    "uint64": Categorical(("0", "18446744073709551615"), ("none", "most")),
    "float": Bins((0.0, 0.1, 1.5, 20.0)),
    "narrow": Bins((0.0, 0.1, 1.5, 20.0)),
    "bool": Boolean(),
    "text": Categorical(("M", "F", "1", "a\nb"), ("M", "F", "1", "a\nb")),
    "bytes": Categorical(("M", ""), ("M", "none")),
    "dict": Categorical(("M", "F"), ("M", "F")),
    "exact": Bins((0.0, 1.5, 2.0)),
    "day": YEAR,
    "time": YEAR,
    "none": Categorical(("", "x"), ("none", "x")),
}


@SPARK
@pytest.mark.parametrize("other", ["count", "show", "drop"])
def test_rows_of_every_kind_of_column_count_as_on_one_machine(spark, tmp_path, other):
    generator = np.random.default_rng(3)
    names = list(DECLARED)
    if other == "drop":  # or none would be left
        names = ["int8", "text", "bool"]
    table = pa.table(
        {
            name: pa.array([own[generator.integers(len(own))] for _ in range(400)], kind)
            for name, (kind, own) in VALUES.items()
        }
    )
    spec = spec_of(*(single(name, DECLARED[name], other=other) for name in names))
    subsets = [(), *((i,) for i in range(len(names))), (0, 1, 2)]
    found, expected = both(table, tmp_path / "data", spec, subsets)
    assert_equal(found, expected)
    assert found[()] > 0
    one_less, _ = both(table.slice(1), tmp_path / "less", spec, subsets, number=2)
    assert moved(found, one_less) in ({0}, {1})


@SPARK
def test_files_of_several_types_and_a_csv_file_of_the_same_rows_count_alike(spark, tmp_path):
    spec = spec_of(
        single("age", Integers(0, 9)), single("sex", Categorical(("M", "F"), ("a", "b")))
    )
    folder = tmp_path / "a [b] {c}, d"
    folder.mkdir()
    ages = (pa.int64(), pa.float32(), pa.string())
    for kind in ages:
        column = pa.array([1, 2, 3]).cast(kind)
        pq.write_table(
            pa.table({" sex": ["M", "F", "M"], "age": column}), folder / f"{kind}.parquet"
        )
    (folder / "inner").mkdir()
    shutil.copy(folder / "float.parquet", folder / "inner" / "copy.parquet")
    rows = [row for _ in range(4) for row in (("M", "1"), ("F", "2"), ("M", "3"))]
    (tmp_path / "rows.csv").write_text(written(rows, FileFormat(), names=("sex", "age")))
    locations = [f"spark:{tmp_path}/a*/*.parquet", f"spark:{tmp_path}/a*/inner"]
    check_header(locations, spec)
    found = tabulate(locations, spec=spec, subsets=ALL)
    assert_equal(found, tabulate(tmp_path / "rows.csv", spec=spec, subsets=ALL))
    assert found[()] == 12


PANEL = pa.table(
    {
        "age": [k % 8 for k in range(960)],
        "id": [f"{CANARY}, who lives at {k // 8 % 120}" for k in range(960)],
        "sex": ["MFx"[k % 3] for k in range(960)],
    }
)
AGE_AND_SEX = (
    single("age", Integers(0, 7)),
    single("sex", Categorical(("M", "F"), ("M", "F")), other="show"),
)


def shuffled(table):
    """Put the rows of each person far apart."""
    return table.take(np.random.default_rng(4).permutation(table.num_rows))


@SPARK
def test_of_persons_with_few_rows_all_count_in_whatever_files_they_lie(spark, tmp_path):
    spec = spec_of(*AGE_AND_SEX, person="id", max_rows=8)
    found, expected = both(shuffled(PANEL), tmp_path / "data", spec, ALL, number=4)
    assert_equal(found, expected)
    assert found[()] == 960
    held = [path for path in spark.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".data" and path.stat().st_size for path in held), held
    assert not any(CANARY.encode() in path.read_bytes() for path in held)


@SPARK
def test_a_person_in_files_of_several_types_is_one(spark, tmp_path):
    spec = spec_of(single("age", Integers(0, 7)), person="id", max_rows=1)
    for k, kind in enumerate((pa.int32(), pa.int64(), pa.string(), pa.binary())):
        ids = pa.array([str(number) for number in range(200)]).cast(
            pa.int64() if pa.types.is_integer(kind) else kind
        )
        table = pa.table({"id": ids.cast(kind), "age": pa.array([k] * 200)})
        pq.write_table(table, tmp_path / f"{k}.parquet", row_group_size=20)
    found = tabulate([f"spark:{tmp_path}/*.parquet"], spec=spec, subsets=[(), (0,)])
    assert found[()] == 200
    assert found[0,][:4].min() > 0


@SPARK
@pytest.mark.statistical
def test_each_row_of_a_person_is_as_likely_to_stay(spark, tmp_path):
    spec = spec_of(*AGE_AND_SEX, person="id", max_rows=3)
    location = parts(shuffled(PANEL), tmp_path / "data", 4)
    counts = np.zeros(8, np.int64)
    for _ in range(5):
        found = tabulate(location, spec=spec, subsets=[(), (0,)])
        assert found[()] == 3 * 120  # no more of anyone, and no fewer
        counts += found[0,][:8]
    # Drawn without putting back: the counts vary less than those of a multinomial.
    assert chisquare(counts).pvalue > 1e-8
    assert len(set(counts.tolist())) > 1


AGE = spec_of(single("age", Integers(0, 9)))


def refusal(*locations, spec=AGE):
    with pytest.raises(DataError) as caught:
        check_header([str(own) for own in locations], spec)
    assert caught.value.__context__ is None
    return str(caught.value)


@SPARK
def test_what_is_no_table_of_rows_is_refused_before_the_charge(spark, tmp_path):
    (tmp_path / "a.csv").write_text(f"age\n{CANARY}\n")
    assert "a.csv is not a Parquet file" in refusal(f"spark:{tmp_path}/a.csv")
    (tmp_path / "empty").mkdir()
    for name in ("none/*.parquet", "none", "empty"):
        assert f"{name} is no file, folder or glob" in refusal(f"spark:{tmp_path}/{name}")
    pq.write_table(pa.table({"age": [1]}), tmp_path / "good.parquet")
    pq.write_table(pa.table({"years": [1]}), tmp_path / "other.parquet")
    message = refusal(f"spark:{tmp_path}/*.parquet")
    assert "other.parquet: the schema lacks the declared column age" in message
    pq.write_table(pa.table({"age": [[1]]}), tmp_path / "other.parquet")
    assert "the column age has the type list" in refusal(f"spark:{tmp_path}/other.parquet")
    good = f"spark:{tmp_path}/good.parquet"
    (tmp_path / "link.parquet").symlink_to(tmp_path / "good.parquet")
    assert "would count twice" in refusal(good, good)
    assert "would count twice" in refusal(good, f"spark:{tmp_path}/link.parquet")
    assert "does not exist" in refusal("spark:table=nobody")
    times = pa.array([0], pa.timestamp("ns"))
    pq.write_table(pa.table({"age": [1], "at": times}), tmp_path / "times.parquet")
    assert "in nanoseconds are one" in refusal(f"spark:{tmp_path}/times.parquet")
    spark.sql("SELECT interval '1' month AS age").write.parquet(f"{tmp_path}/months")
    message = refusal(f"spark:{tmp_path}/months")
    assert "the column age has a type that Arrow lacks, interval month" in message
    zoned = pa.table({"age": pa.array([0], pa.timestamp("us", "Europe/Berlin"))})
    pq.write_table(zoned, tmp_path / "times.parquet")
    assert "moments, whose days differ" in refusal(f"spark:{tmp_path}/times.parquet")


@SPARK
@pytest.mark.parametrize("log", LOGS)
def test_a_table_of_delta_or_iceberg_is_refused_unless_its_name_says_so(spark, tmp_path, log):
    table, file = tmp_path / "t 1", tmp_path / "t 1" / LOGS[log]
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"age": [1]}), file)
    spark.sql(f"CREATE TABLE logged_{len(log)} (age int) USING parquet LOCATION '{file.parent}'")
    locations = [f"spark:{tmp_path}/*", f"spark:{tmp_path}/t*/{LOGS[log]}"]
    locations += [f"spark:table=logged_{len(log)}"]
    for location in locations:
        check_header([location], AGE)
    (table / log).parent.mkdir()
    (table / log).touch()
    for location in locations:
        assert "is a table of Delta or Iceberg" in refusal(location)


@SPARK
def test_a_table_of_the_catalogue_is_one_of_rows(spark, tmp_path):
    pq.write_table(pa.table({"age": [1, 2, 99]}), tmp_path / "a.parquet")
    rows = spark.read.parquet(str(tmp_path / "a.parquet"))
    spark.sql("CREATE DATABASE town")
    rows.write.format("parquet").saveAsTable("town.persons")
    rows.write.format("csv").saveAsTable("town.texts")
    for kind in ("PARQUET", "ORC", "TEXTFILE"):
        spark.sql(f"CREATE TABLE town.{kind} (Provider string, age int) STORED AS {kind}")
        spark.sql(f"INSERT INTO town.{kind} VALUES ('parquet', 1), ('x', 2), ('x', 99)")  # noqa: S608
    spark.sql("CREATE VIEW town.twice AS SELECT * FROM town.texts")
    location = ["spark:table=town.persons"]
    check_header(location, AGE)
    assert tabulate(location, spec=AGE, subsets=[()])[()] == 2
    (folder,) = {own.rpartition("/")[0] for own in spark.table("town.persons").inputFiles()}
    for again in (*location, "spark:table=spark_catalog.town.persons", f"spark:{folder}"):
        assert "would count twice" in refusal(*location, again)
    for stored in ("PARQUET", "ORC"):
        location = [f"spark:table=town.{stored}"]
        check_header(location, AGE)
        assert tabulate(location, spec=AGE, subsets=[()])[()] == 2
    for other in ("texts", "TEXTFILE"):
        assert "is not stored as rows" in refusal(f"spark:table=town.{other}")
    assert "is a view" in refusal("spark:table=town.twice")


@SPARK
def test_a_session_that_tells_or_keeps_too_much_is_refused(spark, tmp_path, monkeypatch):
    pq.write_table(pa.table({"age": [1]}), tmp_path / "a.parquet")
    for key in ("spark.ui.enabled", "spark.eventLog.enabled", "spark.io.encryption.enabled"):
        with monkeypatch.context() as patch:
            now = spark_session._OF_THE_MACHINES[key]
            wanted = "true" if now == "false" else "false"
            patch.setitem(spark_session._OF_THE_MACHINES, key, wanted)
            assert f"start it with {key}={wanted}" in refusal(f"spark:{tmp_path}/a.parquet")


@SPARK
def test_machines_with_another_version_are_refused_before_the_charge(spark, tmp_path, monkeypatch):
    pq.write_table(pa.table({"age": [1]}), tmp_path / "a.parquet")
    monkeypatch.setattr("dpquery.measurement.counting.engines.spark.__version__", "99.0")
    assert "do not run dpquery 99.0" in refusal(f"spark:{tmp_path}/a.parquet")


def test_a_spark_that_cannot_start_is_refused_before_the_charge(monkeypatch):
    pytest.importorskip("pyspark")

    def fails():
        raise OSError(CANARY)

    monkeypatch.setattr(spark_session, "_started", fails)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    assert "could not be started; it needs Java 17" in refusal("spark:a.parquet")


@pytest.fixture
def town(tmp_path, monkeypatch):
    """A planned town that is the working directory, with its rows as Parquet."""
    folder = tmp_path / "town"
    plan_town(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
    write_town("data.parquet")
    return folder


def write_town(path, csv=CSV, rows=1):
    names, *lines = csv.decode().split()
    columns = zip(*(line.split(",") for line in lines * rows), strict=True)
    pq.write_table(pa.table(dict(zip(names.split(","), columns, strict=True))), path)


def damaged(content):
    """Return a Parquet file with zeros for its first rows; what it says of its columns stays."""
    end = (
        4
        + pq.ParquetFile(pa.BufferReader(content))
        .metadata.row_group(0)
        .column(0)
        .total_compressed_size
    )
    return content[:20] + bytes(end - 20) + content[end:]


@SPARK
def test_a_release_from_spark_measures_what_one_from_csv_does(spark, town, monkeypatch):
    monkeypatch.setattr("dpquery.measurement.curator.draw", lambda exact, **_: exact)
    ok("release", f"spark:{town}/data.parquet", "--epsilon", "1")
    values = pq.read_table("release/measurements.parquet").column("value")
    assert spent() == "1"
    ok("release", "data.csv", "--epsilon", "1", "--release-number", "2", "--replace")
    assert values == pq.read_table("release/measurements.parquet").column("value")


@SPARK
def test_a_spark_that_stops_half_way_has_charged_once_and_goes_on_free(spark, town):
    write_town("data.parquet", CSV + f"1,{CANARY},1,5\n".encode(), rows=2000)
    good = Path("data.parquet").read_bytes()
    Path("data.parquet").write_bytes(damaged(good))
    done = run("release", f"spark:{town}/data.parquet", "--epsilon", "1")
    assert (done.code, done.out) == (DataError.exit_code, "")
    assert "could not be read to the end: a file is damaged" in done.err
    assert len(done.err.splitlines()) == 1
    assert CANARY not in done.err
    assert (spent(), kinds()) == ("1", ["register", "reserve"])
    Path("data.parquet").write_bytes(good)
    ok("release", f"spark:{town}/data.parquet", "--epsilon", "1")
    assert spent() == "1"


def removed(session, cells):
    Path("data.parquet").unlink()
    return cells


def lost(session, cells):
    """Break off as where Java ends, which a test of this process cannot have done."""
    raise EOFError(CANARY)


def mute(session, cells):
    """Break off by an error for whose text a Java that has ended would be asked."""

    class MuteError(RuntimeError):
        def __str__(self):
            raise ConnectionRefusedError(CANARY)

    raise MuteError


FAULTS = {
    lost: "Spark ended, as for want of memory",
    mute: "Spark ended, as for want of memory",
    removed: "a file is gone",
}


@SPARK
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:PySpark does not yet")  # of its own pandas
@pytest.mark.parametrize("fault", FAULTS)
def test_what_befalls_a_count_on_spark_is_named_costs_once_and_goes_on_free(
    fault, spark, town, monkeypatch
):
    location = f"spark:{town}/data.parquet"
    real = spark_session._added_up
    with monkeypatch.context() as patch:
        patch.setattr(spark_session, "_added_up", lambda cells, c: real(fault(spark, cells), c))
        done = run("release", location, "--epsilon", "1")
    assert (done.code, done.out) == (DataError.exit_code, ""), done
    assert FAULTS[fault] in done.err
    assert len(done.err.splitlines()) == 1
    assert (spent(), kinds()) == ("1", ["register", "reserve"])
    write_town("data.parquet")
    ok("release", location, "--epsilon", "1")
    assert spent() == "1"


AT_THE_ROWS = """
import os, signal, sys
from dpquery.measurement.counting.engines import spark
sys.path[:0] = {path}
from engines import as_any_user

as_any_user()  # Java, which starts later

def ended(cells):
    number = {number}

    def task(batches):
        os.kill(number, signal.SIGKILL)
        yield from batches

    return spark._mapped(cells, task, spark._fields(3))

def revoked(cells):
    os.chmod("data.parquet", 0)
    return cells

def as_it_is(cells):
    return cells

real = spark._added_up
spark._added_up = lambda cells, counter: real({fault}(cells), counter)
"""
"""Do something where rows are about to be read; machines have functions as they are written."""


@contextmanager
def spark_by(way, folder):
    """Have commands use a Spark of their own, or a Connect server; yield where its number is."""
    with pytest.MonkeyPatch.context() as patch:
        if way == "Connect":
            pytest.importorskip("grpc")
            with connect_server(folder) as (address, number):
                patch.setenv("SPARK_REMOTE", address)
                yield str(number)
        else:
            words = " ".join(f"--conf {key}={value}" for key, value in LOCAL.items())
            patch.setenv("PYSPARK_SUBMIT_ARGS", f"{words} --driver-memory 512m pyspark-shell")
            yield "spark._gateway().proc.pid"


@SPARK
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("way", "fault", "said"),
    [
        ("Connect", "ended", "Spark ended"),
        ("Connect", "revoked", "Spark's user has no right to read it"),
        ("here", "ended", "Spark ended"),
        ("here", "revoked", "Spark's user has no right to read it"),
        ("here", "as_it_is", "Spark ended, as for want of memory|Spark has too little memory"),
    ],
)
def test_what_befalls_a_spark_of_ones_own_is_named_soon_on_one_line_and_costs_once(
    town, way, fault, said
):
    command = ("release", f"spark:{town}/data.parquet", "--epsilon", "1")
    if fault == "as_it_is":  # 600 MB in pieces that Java must hold as a whole
        texts = [f"{CANARY}{k}".ljust(200_000, "x") for k in range(3000)]
        ones = ["1"] * len(texts)
        rows = pa.table({"age": ones, "sex": texts, "region": ones, "income": ones})
        pq.write_table(rows, "data.parquet", row_group_size=len(texts), use_dictionary=False)
    with spark_by(way, town) as number:
        code = AT_THE_ROWS.format(path=sys.path, number=number, fault=fault)
        done = ended(start(*command, code=code), 120)
    assert (done.code, done.out) == (DataError.exit_code, ""), done
    assert re.search(said, done.err), done.err
    assert CANARY not in done.err
    assert len(done.err.splitlines()) == 1, done.err
    assert (spent(), kinds()) == ("1", ["register", "reserve"])
    with spark_by(way, town) as number:
        if fault == "revoked":
            code = AT_THE_ROWS.format(path=sys.path, number=number, fault="as_it_is")
            done = ended(start(*command, code=code))
            assert re.search("^dpquery: .* be read: Spark's user has no right.*\n$", done.err)
            os.chmod("data.parquet", 0o600)
        write_town("data.parquet")
        done = ended(start(*command))
    assert done.code == 0, done
    assert spent() == "1"


@SPARK
@pytest.mark.parametrize(
    "spec", [SPEC, pytest.param(PERSON_SPEC, marks=pytest.mark.slow)], ids=["rows", "persons"]
)
def test_a_command_that_starts_spark_says_and_leaves_nothing_of_the_data(
    tmp_path, monkeypatch, spec
):
    plan_town(tmp_path / "town", spec)
    monkeypatch.chdir(tmp_path / "town")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "town" / "state" / "ledger.db"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    master = " ".join(f"--conf {key}={value}" for key, value in LOCAL.items())
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{master} pyspark-shell")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    csv = CSV.replace(b"income", b"income,name").replace(b"\n", b"," + CANARY.encode() + b"\n")
    csv = csv.replace(CANARY.encode(), b"name", 1).replace(b"income,name,name", b"income,name")
    write_town("data.parquet", csv + f"{CANARY},F,1,5,{CANARY}\n".encode(), rows=900)
    done = ended(start("release", "spark:data.parquet", "--epsilon", "1"))
    assert done.code == 0, done
    assert re.fullmatch(r"ledger: .*\n", done.err), done.err
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert not [path for path in left if path.startswith("tmp/")]
    assert not [path for path in left if re.search("derby|metastore|warehouse|hs_err", path)]
    Path("data.parquet").unlink()
    content = b"".join(
        (tmp_path / path).read_bytes() for path in left if path != "town/data.parquet"
    )
    assert CANARY.encode() not in content
    assert os.environ.get("PYSPARK_PYTHON") is None


@SPARK
@pytest.mark.nightly
def test_by_spark_submit_a_release_is_charged_once_and_logs_nothing_of_what_it_counts(
    town, monkeypatch
):
    import pyspark

    write_town("data.parquet", CSV + f"1,{CANARY},1,5\n".encode(), rows=900)
    good = Path("data.parquet").read_bytes()
    Path("run.py").write_text("from dpquery.cli.app import main\n\nmain()\n")
    Path("events").mkdir()
    tells = {"spark.ui.enabled": "true", "spark.eventLog.enabled": "true"}
    tells |= {"spark.eventLog.dir": f"file://{town}/events", **LOCAL}
    words = [word for key, value in tells.items() for word in ("--conf", f"{key}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    for content, code in ((damaged(good), DataError.exit_code), (good, 0)):
        Path("data.parquet").write_bytes(content)
        command = [submit, *words, "run.py", "release", "spark:data.parquet", "--epsilon", "1"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, done
        assert ("could not be read to the end: a file is damaged" in done.stdout) == bool(code)
        assert CANARY not in done.stdout + done.stderr
        assert not re.search("TaskSetManager|DAGScheduler|Executor", done.stdout + done.stderr)
        assert not [*Path("events").iterdir()]
        assert spent() == "1"
