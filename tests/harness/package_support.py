"""A town whose labels, names and words are such as a spreadsheet or a page could misread."""

from importlib.util import find_spec

from cli_support import ok

ABOUT = """\
about:
  title: Persons of <town> & around
  description: Counts | of persons
  contact: "Statistics Town, info@stats.example"
  licence: CC-BY-4.0
  period: "2024"
  area: Town
  next_update: 2027-03
  notes: =SUM(A1)
"""
SPEC = """\
dataset: {id: town, version: 1}
privacy: {unit: row, neighbours: add-remove}
budget: {epsilon: 4}
domain:
  age: {range: [-2, 4]}
  sex: {values: {F: "=1+1", M: "@SUM(A1)"}}
  region: {values: {1: "+49 30", 2: "-x", no answer: ["", iap]}, other: show}
  income: {bins: [0, 10, 20.5, 50]}
  day: {date: {from: 2013-01-01, to: 2013-03-31, by: month}}
  "=odd name": boolean
workload:
  - name: age_by_sex
    description: Every year of age by sex
    product: {age: identity, sex: identity+total}
  - {name: pairs, marginals: {ways: 2, over: [sex, region, income]}}
  - {name: ages, ranges: {age: all}}
  - {name: days, product: {day: identity, "=odd name": identity}}
  - {name: a-very-long-name-of-more-than-thirty-one-letters, product: {income: identity+total}}
  - {name: history, sum: {of: age, by: {sex: identity}}, publish: {suppress: {below: 10}}}
  - {name: either, any_of: {sex: {is: F}, age: identity}}
"""
DATA = 'age,sex,region,income,day,"=odd name"\n0,F,1,5,2013-01-04,yes\n2,M,2,15,2013-02-04,no\n'
BOTH = ("--also", "csv,xlsx" if find_spec("xlsxwriter") else "csv")
"""All formats that this machine can write."""


def make_town(folder, spec):
    folder.mkdir(parents=True)
    (folder / "workload.yaml").write_text(spec)
    (folder / "data.csv").write_text(DATA)
    ledger = ("--ledger", folder / "state" / "ledger.db")
    plan = folder / "dpquery.plan"
    ok("plan", folder / "workload.yaml", "--out", plan, "--time-limit", "0", *ledger)
    places = ("--plan", plan, "--out", folder / "release", *ledger)
    ok("release", folder / "data.csv", "--epsilon", "1", "--also", "nonnegative", *places)


def packed_once(base):
    """Make a town below a folder, release it and pack it; for all tests of a run."""
    folder = base / "packed-town"
    if not (folder / "package").exists():
        make_town(folder, ABOUT + SPEC)
        ok("package", folder / "release", "--out", folder / "package", *BOTH)
    return folder
