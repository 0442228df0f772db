"""A PostgreSQL server of the tests' own, in a folder, reached by a socket in it."""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
PORT = 5499


def program(name):
    """Return the path of a program of PostgreSQL, or None."""
    return next((str(own / name) for own in PLACES if (own / name).exists()), shutil.which(name))


@contextmanager
def running():
    """Yield the URI of a server that runs meanwhile; skip the test where there is none."""
    initdb, ctl = program("initdb"), program("pg_ctl")
    if initdb is None or ctl is None:
        pytest.skip("PostgreSQL's server is not installed")
    user = {"user": "postgres"} if os.geteuid() == 0 else {}  # it refuses to run as root
    with tempfile.TemporaryDirectory() as folder:
        if user:
            os.chmod(folder, 0o755)  # noqa: S103
        place = Path(folder, "sockets")
        place.mkdir()
        try:
            if user:
                shutil.chown(place, "postgres")
        except LookupError:
            pytest.skip("there is no user postgres to run PostgreSQL's server")

        def call(*words):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run(words, check=True, cwd=place, **quiet, **user)

        data, log = str(place / "data"), str(place / "log")
        call(initdb, "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8")
        options = f"-k {place} -c listen_addresses= -p {PORT}"
        call(ctl, "-D", data, "-o", options, "-l", log, "-w", "start")
        try:
            yield f"postgresql://postgres@/postgres?host={place}&port={PORT}"
        finally:
            call(ctl, "-D", data, "-m", "immediate", "-w", "stop")
