"""Towns whose plans hold RAP, made by hand: what plan would have simulated is invented."""

import dataclasses
from fractions import Fraction
from pathlib import Path

from cli_support import SPEC

from dpquery.plan_file.plan import read_plan, write_plan
from dpquery.plan_file.rehearsals import PlannedAdaptive, PlannedRap, RapSettings, Rehearsal
from dpquery.releases.folder.noisy_files import read_relaxed
from dpquery.releases.manifest import read_manifest

MIXED = """\
  - name: upto
    product: {age: prefix, sex: identity, region: {is: North}}
  - name: any
    any_of: {sex: {is: F}, region: {is: South}, income: {between: [0, 10]}}
  - name: two
    threshold: {r: 2, of: [age, sex, region]}
"""
ROW_SPEC = SPEC.replace("neighbours: add-remove", "neighbours: add-remove, delta: 1e-6").replace(
    "{epsilon: 4}",
    "{epsilon: 4, delta: 1e-6, accounting: zcdp}",  # as a plan that prefers RAP says
)
MIXED_SPEC = ROW_SPEC + MIXED
PERSON_SPEC = MIXED_SPEC.replace("unit: row", "unit: {person: name, max_rows: 2}")
REPLACE_SPEC = MIXED_SPEC.replace("add-remove", "replace").replace(
    "version: 1}", "version: 1, rows: 6}"
)
REPLACE_SPEC = REPLACE_SPEC.replace("other: drop\n", "other: show\n")  # all 6 are in the domain
REPLACE_SPEC += "  - {name: whole, product: {}}\n"
REHEARSED = PlannedRap(
    settings=RapSettings(rounds=2, selected=3, relaxed_rows=20, seed=0),
    epsilon=Fraction(1),
    delta=Fraction(1, 10**6),
    proxy="the default prior",
    repetitions=3,
    rmse=4.5,
    rmse_spread=0.25,
    max_error=17.0,
    max_error_spread=2.0,
    linear_rmse=11.0,
    linear_max_error=60.5,
    margin=0.7,
    preferred=True,
)


def rehearse(plan=Path("dpquery.plan"), **changes):
    """Put RAP into a plan, as it was rehearsed but for some changes."""
    linear = dataclasses.replace(read_plan(plan.read_bytes()), relaxed=None)
    relaxed = dataclasses.replace(REHEARSED, **changes)
    plan.write_bytes(write_plan(dataclasses.replace(linear, relaxed=relaxed)))


SHARED = {field.name: getattr(REHEARSED, field.name) for field in dataclasses.fields(Rehearsal)}
REHEARSED_TABLES = PlannedAdaptive(**SHARED, tables=15, rounds=4)


def rehearse_tables(plan=Path("dpquery.plan"), **changes):
    """Put adaptive measurement into a plan, as they were rehearsed but for some changes."""
    linear = dataclasses.replace(read_plan(plan.read_bytes()), relaxed=None)
    planned = dataclasses.replace(REHEARSED_TABLES, **changes)
    plan.write_bytes(write_plan(dataclasses.replace(linear, adaptive=planned)))


def relaxed_of(release, compiled):
    """The relaxed rows of a release that was made for a workload."""
    return read_relaxed(release, compiled, digest=read_manifest(release).rap.rows_sha256)
