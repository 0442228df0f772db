"""The manifest and the statement say what was charged and is promised; a damaged one is found."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from release_parts import ITEMS, manifest, one, release, spec_of

from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import charge_units, guarantee, units_text
from dpquery.releases.manifest import manifest_text, read_manifest
from dpquery.releases.statement import statement
from dpquery.spec.spec import Item


def test_the_manifest_states_the_charge_that_the_ledger_has():
    for noise, epsilon in (("laplace", "1/3"), ("gaussian", "1")):
        terms = guarantee(noise, epsilon=Fraction(epsilon), delta=Fraction(1, 10**9))
        stated = manifest(spec_of(ITEMS[-1:]), noise=noise, epsilon=epsilon).guarantee.charged
        units = charge_units(terms, "epsilon" if noise == "laplace" else "rho")
        assert stated == units_text(units)


def test_a_manifest_read_back_is_the_manifest(tmp_path):
    release(tmp_path / "out")
    text = (tmp_path / "out" / "release.json").read_text()
    assert read_manifest(tmp_path / "out") == manifest(spec_of(ITEMS[-3:]))
    assert manifest_text(read_manifest(tmp_path / "out")) == text
    assert json.loads(text)["ledger"] == {"seq": 3, "head": "h" * 64}
    assert str(tmp_path) not in text


def test_a_manifest_from_before_there_was_a_choice_names_opendp(tmp_path):
    release(tmp_path / "out")
    path = tmp_path / "out" / "release.json"
    older = json.loads(path.read_text())
    del older["noise"]["source"]
    path.write_text(json.dumps(older))
    assert read_manifest(tmp_path / "out").noise.source == "OpenDP"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"level": 0.95', '"level": "0.95"'),
        ('"level": 0.95', '"level": NaN'),
        ('"level": 0.95', '"levels": 0.95'),
        ('"any.parquet"', '"../any.parquet"'),
        ('"max_rows": 1', '"max_rows": true'),
        ("{", ""),
    ],
)
def test_a_damaged_manifest_is_told_apart(tmp_path, old, new):
    release(tmp_path / "out")
    path = tmp_path / "out" / "release.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(SpecError, match="damaged"):
        read_manifest(tmp_path / "out")


@pytest.mark.parametrize(
    ("privacy", "expected"),
    [
        ({}, ["one row of the file", "with that row in it, and the dataset without."]),
        ({"max_rows": 3}, ["any 3 rows of the file", "which the curator promises"]),
        (
            {"person": "pid", "max_rows": 2, "neighbours": "replace"},
            ["column `pid`", "At most 2 rows", "other rows in their place"],
        ),
    ],
)
def test_the_statement_names_unit_and_neighbours(privacy, expected):
    text = statement(manifest(spec_of(**privacy)))
    assert [words for words in expected if words not in text] == []


def test_the_statement_says_the_numbers_in_words():
    gaussian = statement(manifest(spec_of()))
    for words in (
        "ε = 1 at δ = 1e-9",
        "one in 1,000,000,000",
        "2.72 times",
        "73.1 %",
        "not a sampling",
    ):
        assert words in gaussian
    pure = statement(manifest(spec_of(), noise="laplace", epsilon="0.1"))
    assert "ε = 0.1 (pure" in pure
    assert "extra probability" not in pure
    assert "Releases so far have spent 1 of 4." in pure
    assert "The noise comes from Source 7, which draws it exactly" in pure


def test_the_statement_says_what_the_noise_comes_to_in_counts():
    facts = manifest(spec_of())
    strategy = replace(facts.strategy, rmse=31.7, max_std_error=220.25)
    coarse = replace(facts.noise, scale=3.3e8, shift=59, sensitivity="16")
    text = " ".join(statement(replace(facts, strategy=strategy, noise=coarse)).split())
    assert "of each measurement, taken in steps of 2^59, noise of the discrete Gaussian" in text
    assert "of scale 3.3e+08 steps was added once" in text
    assert "are 31.7 (root mean square) and 220.2 at most" in text
    fine = replace(facts.noise, shift=0)
    text = " ".join(statement(replace(facts, strategy=strategy, noise=fine)).split())
    assert "of each measurement, noise of the discrete Gaussian" in text
    assert "steps" not in text


def test_a_description_cannot_break_the_statement():
    item = Item("x", (one(),), description="<script>alert(1)</script>\n# heading `code`")
    text = statement(manifest(spec_of([item])))
    assert "<script>" not in text
    assert "\n# heading" not in text
