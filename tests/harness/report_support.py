"""Releases with answers that are known, one with all shapes of items, and their pictures."""

import re
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from html import unescape
from itertools import pairwise

import numpy as np

from dpquery.measurement.accounting import guarantee
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.folder.write import ReleaseContent, write_release
from dpquery.releases.manifest import LedgerFacts, StrategyFacts, manifest_of
from dpquery.releases.report.axes import BESIDE, NARROWEST, PANEL_WIDTH, STRIP_WIDTH
from dpquery.releases.report.figures import load_report
from dpquery.releases.report.page import page
from dpquery.spec.columns import Attribute, Bins, Categorical, Column, Domain, Integers
from dpquery.spec.parsing.read import load_spec
from dpquery.spec.predicates import AllRangesSet, GroupSet, IdentitySet, PrefixSet
from dpquery.spec.spec import Budget, Dataset, Item, Privacy, Spec, Table

EVIL = "<script>alert('x')</script>"
DOMAIN = Domain(
    (
        Attribute("age", (Column("age", Integers(0, 29), "drop"),)),
        Attribute("sex", (Column("sex", Categorical(("1", "2"), ("Male", EVIL)), "drop"),)),
        Attribute("income", (Column("income", Bins(tuple(map(float, range(21)))), "drop"),)),
    )
)
AGE, SEX, INCOME = ((index, IdentitySet(size)) for index, size in enumerate(DOMAIN.shape))
TEENS = GroupSet(30, (("teens & <b>", tuple(range(13, 20))), ("rest", (0, 1))))

ITEMS = (
    Item("population", (Table(()),), 4.0, "Everyone"),
    Item("ages", (Table((AGE,)),), description=EVIL),
    Item("pyramid", (Table((AGE, SEX)),)),
    Item("upto", (Table(((2, PrefixSet(20, 20)),)),)),
    Item("groups", (Table(((0, TEENS), SEX)),)),
    Item("many", (Table(((0, AllRangesSet(30, 30)), SEX)),)),
    Item("pairs", (Table((SEX,)), Table((AGE,)))),
)
CURVE = ((0.5, 10), (2, 2.5))
SIZE_OF = {"population": 1000.0, "ages": 50.0, "pyramid": 20.0, "many": 5.0, "groups": 400.0}


def answers(item):
    for table in item.tables:
        error = np.full(table.size, 5.0)
        estimate = np.full(table.size, SIZE_OF.get(item.name, 100.0)) + np.arange(table.size) % 3
        yield TableAnswers(table, estimate, error, 2 * error)


def release(
    folder,
    *,
    items=ITEMS,
    domain=DOMAIN,
    answers=answers,
    noise="gaussian",
    labelled=None,
    curve=CURVE,
):
    delta = Fraction(1, 10**9)
    spec = Spec(Dataset("people", "7"), Privacy(), Budget(epsilon=Fraction(4)), domain, items)
    terms = guarantee(noise, epsilon=Fraction(1), delta=delta)
    manifest = manifest_of(
        spec,
        mechanism=CalibratedNoise(terms, 0, 1, 2.0),
        noise_source="OpenDP 0",
        strategy=StrategyFacts(EVIL, "product", 5.0, 5.0, 4.0, "SVD bound", 1.25, "s" * 64),
        plan="p" * 64,
        key="k",
        ledger=LedgerFacts(1, "h" * 64),
        cumulative="Releases so far have spent 1 of 4.",
        level=0.9,
        error_by_epsilon=curve,
        labelled_tables=labelled,
    )
    write_release(folder, ReleaseContent(answers, manifest), spec=spec, replace=False)
    return load_report(folder)


# A release with an item of every shape, and what stands in its pictures.

STATES = "Alabama, Alaska, Arizona, Arkansas, California, Colorado, Connecticut, Delaware, Florida"
SHAPES = f"""\
dataset: {{id: shapes, version: 1}}
privacy: {{unit: row, delta: 1e-9}}
budget: {{epsilon: 4, delta: 1e-9}}
domain:
  day: {{date: {{from: 2013-01-01, to: 2013-12-31, by: day}}}}
  month: {{date: {{from: 2013-01, to: 2014-12, by: month}}}}
  hour: {{range: [0, 23]}}
  age: {{range: [0, 99]}}
  sex: {{values: [Male, Female]}}
  state: {{values: [{STATES}]}}
  code: {{values: {{1: North, 2: South, 3: East, 4: West}}}}
  income: {{bins: [0, 1, 10000, 25000, 60000, 200000, 10000000], other: show}}
  poor: boolean
workload:
  - {{name: one, product: {{}}}}
  - {{name: days, product: {{day: identity}}}}
  - {{name: months, product: {{month: identity}}}}
  - {{name: hours, product: {{hour: identity}}}}
  - {{name: up_to, product: {{income: prefix}}}}
  - {{name: bins, product: {{income: identity}}}}
  - {{name: windows, product: {{age: {{width: 10}}}}}}
  - {{name: states, product: {{state: identity}}}}
  - {{name: grouped, product: {{code: identity, sex: identity, poor: identity}}}}
  - {{name: two_lines, product: {{age: identity, sex: identity}}}}
  - {{name: panels, product: {{age: identity, state: identity}}}}
  - {{name: map, product: {{hour: identity, month: identity}}}}
  - {{name: maps, product: {{hour: identity, month: identity, sex: identity}}}}
  - {{name: names, product: {{code: identity, state: identity, sex: identity}}}}
  - {{name: ages_and_all, product: {{age: identity+total, sex: identity}}}}
  - {{name: triangle, ranges: {{hour: all}}}}
  - {{name: whole_and_parts, product: {{state: identity+total, income: identity+total}}}}
  - name: calendar
    product:
      day:
        - total
        - groups: {{2013-Q1: [2013-Q1], 2013-Q2: [2013-Q2], 2013-Q3: [2013-Q3], 2013-Q4: [2013-Q4]}}
        - identity
  - {{name: pairs, marginals: {{ways: 2, over: [hour, sex, state, code, poor]}}}}
  - {{name: very_many, product: {{day: identity, month: identity, state: identity}}}}
  - {{name: too_wide, product: {{day: identity, age: identity}}}}
  - {{name: sums, sum: {{of: age, by: {{state: identity}}}}}}
  - {{name: either, any_of: {{sex: {{is: Male}}, poor: {{is: yes}}}}}}
  - {{name: rounded, product: {{state: identity}}, publish: &few {{suppress: {{below: 15}}}}}}
  - {{name: rounded_map, product: {{hour: identity, month: identity}}, publish: *few}}
  - {{name: rounded_line, product: {{hour: identity}}, publish: *few}}
"""
KINDS_OF_SHAPES = {
    "one": "points",
    "days": "line",
    "months": "line",
    "hours": "line",
    "up_to": "line",
    "bins": "points",
    "windows": "line",
    "states": "points",
    "grouped": "points",
    "two_lines": "lines",
    "panels": "lines by group",
    "map": "heat map",
    "maps": "heat maps by group",
    "names": "heat maps by group",
    "ages_and_all": "lines",
    "triangle": "extremes",
    "whole_and_parts": "heat map",
    "calendar": "extremes",
    "pairs": "tables",
    "very_many": "lines by group",
    "too_wide": "lines by group",
    "sums": "points",
    "either": "points",
    "rounded": "points",
    "rounded_map": "heat map",
    "rounded_line": "line",
}


def wavy_answers(item):
    """Answers from below zero to thousands, with intervals of 20 either way."""
    for table in item.tables:
        places = np.arange(table.size)
        estimate = 12.0 * (places % 7) - 9 + 3000.0 * (places % 41 == 3) + 0.25
        error = np.full(table.size, 10.0)
        yield TableAnswers(table, estimate, error, 2 * error)


def shapes_spec(folder):
    """The spec with an item of every shape."""
    folder.mkdir(exist_ok=True)
    (folder / "workload.yaml").write_text(SHAPES)
    return load_spec(folder / "workload.yaml")


def release_of_shapes(folder, *, answers=wavy_answers, labelled=None):
    """A release of all shapes, read back."""
    spec = shapes_spec(folder)
    out = folder / "out"
    return release(out, items=spec.items, domain=spec.domain, answers=answers, labelled=labelled)


def articles(report):
    """The part of the page about each item, by name."""
    parts = re.findall(r"<article.*?</article>", page(report), re.S)
    return {re.search(r'id="item-([^"]+)"', part)[1]: part for part in parts}


def pictures(text):
    """The plots in a part of the page, as elements, without the strips of points."""
    return [svg for svg in every_svg(text) if svg.get("role") == "img"]


def every_svg(text):
    """All drawings in a part of the page, as elements."""
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]  # noqa: S314  # our own page


def level_axes(text):
    """The axes below plots: for each the pixels that it has at least, and its texts.

    Of each text the share at which it stands, the share of itself that is left of that, itself.
    """
    axes = []
    for k, part in enumerate(text.split('<div class="panel">')):
        rows = re.findall(r'(<td>)?<div class="xs"[^>]*><div>(.*?)</div>', part)
        for place, (cell, row) in enumerate(rows):
            room = STRIP_WIDTH if cell else PANEL_WIDTH if k and place == 0 else NARROWEST
            texts = re.findall(r'<i style="left:([\d.]+)%;--s:-?([\d.]+)%">(.*?)</i>', row)
            axes.append(
                (room, [(float(x) / 100, float(s) / 100, unescape(t)) for x, s, t in texts])
            )
    return axes


def faults(text):
    """Texts below plots that stick out or stand on each other in the narrowest window."""
    found = []
    for room, texts in level_axes(text):
        boxes = [(x * room - s * 7.2 * len(t), 7.2 * len(t), t) for x, s, t in texts]
        found += [t for left, width, t in boxes if left < -BESIDE or left + width > room + BESIDE]
        found += [f"{a[2]} on {b[2]}" for a, b in pairwise(boxes) if a[0] + a[1] > b[0]]
    return found
