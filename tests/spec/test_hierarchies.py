"""Hierarchies of values: what is asked by level, what a release shows of it, and bad files."""

import json
import re

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from specs import unhashed, with_true_figures
from test_spec_mistakes import mistakes
from town import ok

from dpquery import answer, plan, release
from dpquery.exceptions import SpecError
from dpquery.limits import MAX_SPEC_BYTES
from dpquery.measurement.counting.column_codes import code_of
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity
from dpquery.plan_file.plan import ChangedFile
from dpquery.releases.tables.long_table import LABELS_SCHEMA, labels_table, with_levels
from dpquery.spec.parsing.read import load_spec, parse
from dpquery.spec.predicates import IdentitySet
from dpquery.strategy.shapes.marginals import ProductStrategy

AREAS = """\
tract,tract_label,county,county_label,state,state_label,metro
01001-1,Old town,01001,Autauga,01,Alabama,M1
48001-1,Plain,48001,Anderson,48,Texas,none
01001-2,Harbour,01001,Autauga,01,Alabama,M2
01003-1,Old town,01003,Baldwin,01,Alabama,M1
48003-1,"Hill, north",48003,Baldwin,48,Texas,none
48003-2,,48003,Baldwin,48,Texas,M1
"""
HEAD = """\
dataset: {id: land, version: 1}
privacy: {unit: row}
budget: {epsilon: 1000000}
domain:
  area: {hierarchy: areas.csv, levels: [[state, county, tract], [metro, tract]], column: tract}
  sex: {values: [F, M]}
workload:
"""
ITEMS = """\
  - {name: levels, product: {area: [total, state, county, tract], sex: identity}}
  - {name: metros, product: {area: metro}}
  - {name: texas, product: {area: {level: county, within: {state: [48]}}}}
  - {name: inner, product: {area: {level: tract, within: {state: Alabama, metro: [M1]}}}}
  - {name: women, where: {area: {state: 1}, sex: F}, product: {}}
  - {name: either, product: {area: {in: [{state: 48}, 01001-1, {county: 1003}]}}}
  - {name: named, product: {area: {groups: {gulf: [{state: 01}, {metro: none}]}}}}
  - {name: few, threshold: {r: 1, of: [area, sex], targets: {area: {metro: M2}, sex: M}}}
"""
SPEC = HEAD + ITEMS
LATER = """\
workload:
  - {name: whole, product: {area: [state, {level: county, within: {state: Texas}}]}}
  - {name: men, where: {sex: M}, product: {area: {is: {county: 01001}}}}
"""
FILES = {"areas.csv": AREAS}
LISTS = "[[state, county, tract], [metro, tract]]"


def read(text=SPEC, areas=AREAS):
    return parse(text, name="w.yaml", files={"areas.csv": areas})


def records(count=400):
    """Made-up records, some in tracts that the file does not have."""
    rng = np.random.default_rng(5)
    tracts = [line.split(",")[0] for line in AREAS.splitlines()[1:]]
    area = rng.choice([*tracts, "99999-9", ""], count)
    return pd.DataFrame({"tract": area, "sex": rng.choice(["F", "M", "?"], count)})


def joined(data):
    """The records with the groups that they lie in, by pandas; null in unknown tracts."""
    areas = pd.read_csv(pd.io.common.StringIO(AREAS), dtype=str, keep_default_na=False)
    return data.merge(areas, on="tract", how="left", validate="many_to_one")


def order(column):
    return pd.read_csv(pd.io.common.StringIO(AREAS), dtype=str)[column].drop_duplicates()


def expected(data):
    """The counts of every item, in the order of its rows."""
    whole = joined(data)
    by_sex = [(whole["sex"] == "F").sum(), (whole["sex"] == "M").sum()]
    for level in ("state", "county", "tract"):
        for code in order(level):
            by_sex += [((whole[level] == code) & (whole["sex"] == sex)).sum() for sex in "FM"]
    alabama, texas = whole["state"] == "01", whole["state"] == "48"
    union = texas | (whole["tract"] == "01001-1") | (whole["county"] == "01003")
    metros = [(whole["metro"] == code).sum() for code in ("M1", "none", "M2")]
    inner = [(whole["tract"] == code).sum() for code in ("01001-1", "01003-1")]
    return {
        "levels": by_sex,
        "metros": metros,
        "texas": [(whole["county"] == code).sum() for code in ("48001", "48003")],
        "inner": inner,
        "women": [(alabama & (whole["sex"] == "F")).sum()],
        "either": [union.sum()],
        "named": [(alabama | (whole["metro"] == "none")).sum()],
        "few": [((whole["metro"] == "M2") | (whole["sex"] == "M")).sum()],
    }


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A release of every cell with hardly any noise: a search for a strategy would take long."""
    folder = tmp_path_factory.mktemp("land")
    (folder / "areas.csv").write_text(AREAS)
    (folder / "workload.yaml").write_text(SPEC)
    (folder / "later.yaml").write_text(LATER)
    records().to_csv(folder / "data.csv", index=False)
    places = {"plan_path": folder / "dpquery.plan", "ledger_path": folder / "ledger.db"}
    plan(folder / "workload.yaml", mechanism="linear", time_limit=0.1, **places)
    raw = unhashed((folder / "dpquery.plan").read_text())
    cells = tuple(map(Identity, compile_spec(read()).workload.shape_of_domain))
    raw["selections"][0]["strategy"] = ProductStrategy("cells", "laplace", cells).encode()
    (folder / "dpquery.plan").write_text(json.dumps(with_true_figures(raw)))
    release(folder / "data.csv", epsilon=50000, out=folder / "release", **places)
    return folder


def test_items_by_level_are_the_counts_of_pandas(released):
    for name, counts in expected(records()).items():
        rows = pd.read_parquet(released / "release" / f"{name}.parquet")
        assert rows["estimate"].round().tolist() == counts
        assert (rows["estimate"] - counts).abs().max() < 0.1


def test_a_group_is_the_sum_of_the_groups_below_it(released):
    rows = pd.read_parquet(released / "release" / "levels.parquet")
    areas = pd.read_csv(pd.io.common.StringIO(AREAS), dtype=str)
    for above, below in (("state", "county"), ("county", "tract")):
        parents = dict(zip(areas[below], areas[above], strict=True))
        lower = rows[rows["area_level"] == below]
        key = [lower["area_code"].astype(str).map(parents), lower["sex"].astype(str)]
        sums = lower["estimate"].groupby(key).sum()
        upper = rows[rows["area_level"] == above].set_index(["area_code", "sex"])["estimate"]
        assert np.allclose(sums, upper[sums.index], rtol=0, atol=1e-9)


def test_rows_have_label_code_and_level_and_join(released):
    table = pq.read_table(released / "release" / "levels.parquet")
    assert table.column_names[:4] == ["area", "area_code", "area_level", "sex"]
    rows = table.to_pandas().drop_duplicates(["area_code", "area_level"])
    assert rows[["area", "area_code", "area_level"]].astype(object).fillna("-").values.tolist() == [
        ["all", "-", "-"],
        ["Alabama", "01", "state"],
        ["Texas", "48", "state"],
        ["Autauga", "01001", "county"],
        ["Anderson", "48001", "county"],
        ["Baldwin", "01003", "county"],
        ["Baldwin", "48003", "county"],
        ["Old town", "01001-1", "tract"],
        ["Plain", "48001-1", "tract"],
        ["Harbour", "01001-2", "tract"],
        ["Old town", "01003-1", "tract"],
        ["Hill, north", "48003-1", "tract"],
        ["48003-2", "48003-2", "tract"],
    ]
    women = pd.read_parquet(released / "release" / "women.parquet")
    assert women[["area", "area_code", "area_level"]].values.tolist() == [
        ["Alabama", "01", "state"]
    ]
    either = pd.read_parquet(released / "release" / "either.parquet")
    assert either["area"].tolist() == ["Texas, Old town, Baldwin"]
    assert either[["area_code", "area_level"]].isna().all(axis=None)
    ok("error-report", released / "release", "--html", released / "r.html")
    page = (released / "r.html").read_text()
    for label in ("Autauga", "Baldwin (01003)", "Baldwin (48003)", "Old town (01001-1)"):
        assert label in page
    assert "Alabama (01)" not in page


def test_a_release_says_by_which_levels_its_rows_are(released):
    manifest = json.loads((released / "release" / "release.json").read_text())
    levels = {item["name"]: item.get("levels") for item in manifest["items"]}
    assert levels["levels"] == [{"attribute": "area", "levels": ["state", "county", "tract"]}]
    assert levels["inner"] == [{"attribute": "area", "levels": ["tract"]}]
    assert levels["women"] == [{"attribute": "area", "levels": ["state"]}]
    assert "levels" not in next(item for item in manifest["items"] if item["name"] == "either")
    statement = (released / "release" / "statement.md").read_text()
    assert "`levels.parquet`: 26 answers. Rows of area by state, county, tract" in statement


def test_levels_are_answered_later(released):
    answers = answer(released / "release", released / "later.yaml", out=released / "later")
    whole, data = answers.table("whole"), joined(records())
    assert whole["area_code"].tolist() == ["01", "48", "48001", "48003"]
    assert whole["area_level"].tolist() == ["state", "state", "county", "county"]
    counts = [(data["state"] == code).sum() for code in ("01", "48")]
    counts += [(data["county"] == code).sum() for code in ("48001", "48003")]
    assert whole["estimate"].round().tolist() == counts
    men = answers.table("men")
    assert men["area_code"].tolist() == ["01001"]
    assert men["estimate"].round().tolist() == [
        ((data["county"] == "01001") & (data["sex"] == "M")).sum()
    ]


def test_a_level_asks_what_the_same_groups_written_out_ask():
    plain = HEAD.replace(
        "hierarchy: areas.csv, levels: [[state, county, tract], [metro, tract]]",
        "values: [01001-1, 48001-1, 01001-2, 01003-1, 48003-1, 48003-2]",
    )
    groups = {
        "state": "{groups: {a: [01001-1, 01001-2, 01003-1], t: [48001-1, 48003-1, 48003-2]}}",
        "metro": "{groups: {x: [01001-1, 01003-1, 48003-2], y: [48001-1, 48003-1], z: [01001-2]}}",
        "tract": "identity",
        "{state: 48}": "{in: [48001-1, 48003-1, 48003-2]}",
    }
    for asked, written in groups.items():
        level = asked.strip("{").split(":")[0]
        lists = "[tract]" if level == "tract" else f"[{level}, tract]"
        item = f"  - {{name: a, product: {{area: {asked}, sex: identity}}}}\n"
        one = compile_spec(read(HEAD.replace(LISTS, lists) + item))
        other = compile_spec(parse(plain + item.replace(asked, written), name="w", files={}))
        assert [c.tolist() for c in one.classes] == [c.tolist() for c in other.classes]
        pairs = zip(one.workload.blocks, other.workload.blocks, strict=True)
        for first, second in pairs:
            assert [f.key for f in first.factors] == [f.key for f in second.factors]


@pytest.mark.parametrize("seed", range(12))
def test_groups_of_random_files_are_those_of_pandas(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 40))
    county, cut = rng.integers(0, 6, count), rng.integers(0, 3, 6)
    frame = pd.DataFrame({"v": [f"0{k}v" for k in range(count)], "c": county, "s": cut[county]})
    frame["m"] = rng.integers(0, 4, count)
    frame = frame.astype(str).sample(frac=1, random_state=seed)
    head = HEAD.replace(LISTS, "[[s, c, v], [m, v]]")
    within = frame["s"].iloc[0]
    item = (
        f"  - {{name: a, product: {{area: [s, c, m, v, {{level: c, within: {{s: {within}}}}}]}}}}\n"
    )
    states, counties, metros, values, inner = (
        read(head + item, frame.to_csv(index=False)).items[0].tables[0].axes[0][1].parts
    )
    assert len(values) == count
    for asked, column in ((states, "s"), (counties, "c"), (metros, "m")):
        assert asked.named == tuple((column, code) for code in frame[column].unique())
        for (_, codes), (_, code) in zip(asked.groups, asked.named, strict=True):
            assert list(codes) == np.flatnonzero(frame[column] == code).tolist()
    assert [code for _, code in inner.named] == frame["c"][frame["s"] == within].unique().tolist()


def test_codes_match_by_text_or_number_and_unknown_ones_go_where_others_do():
    areas = "county,state\n01001,01\n01003,01\nA5,48\n"
    text = HEAD.replace(LISTS, "[state, county]")
    item = "  - {name: a, product: {area: [county, state]}}\n"
    for other, code in (("count", 3), ("show", 3), ("drop", -1)):
        spec = read(text.replace("tract}", f"tract, other: {other}}}") + item, areas)
        coded = code_of(spec.domain.attributes[0].columns[0])
        texts = [b"01001", b"1001", b"1003.0", b" A5 ", b"a5", b"01", b""]
        assert [coded(text) for text in texts] == [0, 0, 1, 2, code, code, code]
        counties, states = spec.items[0].tables[0].axes[0][1].parts
        assert states.groups == (("01", (0, 1)), ("48", (2,)))
        assert len(counties) == 3 + (other == "show")
    assert read(text + item, areas).items[0].tables[0].axes[0][1].parts[1].named == (
        ("state", "01"),
        ("state", "48"),
    )


def test_the_lowest_level_is_every_value_and_others_share_their_members():
    items = "".join(f"  - {{name: i{k}, product: {{area: county}}}}\n" for k in range(3))
    spec = read(
        HEAD.replace(LISTS, "[county, tract]")
        + items
        + "  - {name: t, product: {area: {level: tract}}}\n"
    )
    sets = [item.tables[0].axes[0][1] for item in spec.items]
    assert isinstance(sets[3], IdentitySet)
    members = [[id(codes) for _, codes in group.groups] for group in sets[:3]]
    assert members[0] == members[1] == members[2]


def test_a_changed_file_is_a_changed_spec(released):
    raw = unhashed((released / "dpquery.plan").read_text())
    assert raw["spec"]["files"] == FILES
    places = {"plan_path": released / "dpquery.plan", "ledger_path": released / "ledger.db"}
    areas = ChangedFile("areas.csv", in_content=True)
    for label, changed in (("Outagamie", areas), ("Autauga", None)):
        (released / "areas.csv").write_text(AREAS.replace("Autauga", label))
        again = release(released / "data.csv", epsilon=50000, out=released / label, **places)
        assert (again.free, again.changed) == (True, changed)


def test_items_of_very_many_tables_have_levels_in_their_labels():
    head = HEAD.replace(LISTS, "[county, tract]")
    spec = read(head + "  - {name: a, product: {area: [total, county], sex: identity}}\n")
    labels = labels_table(spec.items[0], spec.domain)
    assert labels.schema == with_levels(LABELS_SCHEMA)
    assert labels["level"].to_pylist() == [None, *["county"] * 4, None, None]
    assert labels["code"].to_pylist()[:5] == [None, "01001", "48001", "01003", "48003"]
    plain = read(
        head.replace("[county, tract]", "[tract]") + "  - {name: a, product: {sex: identity}}\n"
    )
    assert labels_table(plain.items[0], plain.domain).schema == LABELS_SCHEMA


# Mistakes in files of hierarchies, and in specs that ask by level, are named at their places.


MISTAKES = [
    # what the file has in place of what, and what is said of it
    ("48003-1,", "01003-1,", "a.csv:6:1: the value of column 'tract' is given twice"),
    (
        "01,Alabama,M2",
        "48,Texas,M2",
        "a.csv:4:1: this county lies in another state in line 2; correct "
        "the line, give every county a code of its own",
    ),
    (",48003,Baldwin,48,Texas,none", ",,Baldwin,48,Texas,none", "a.csv:6:1: this line has no 'co"),
    ("48003,Baldwin,48,Texas,M1", "48003,Baldwin,48,Texas,", "a.csv:7:1: this line has no 'metro'"),
    ("Autauga,01,Alabama,M2", "Autaugo,01,Alabama,M2", "a.csv:4:1: this county has another label"),
    ("48003,Baldwin,48,Texas,M1", "048003,B,48,Texas,M1", "a.csv:7:1: this county is the same"),
    ("48003-1,", "1001,", None),
    ("Plain,", "", "a.csv:3:1: expected 7 fields, as the header has, found 6"),
    ('"Hill, north"', '"Hill, north', "a.csv:6:1: the quotes do not pair up"),
    ("county,county_label", "county,county", "a.csv:1:1: two columns are called 'county'"),
    ("county_label,state", "state_label,state", "a.csv:1:1: two columns are called 'state_label'"),
    (",county,", ",country,", "w.yaml:5:49: 'county' is no column of 'areas.csv'; did you mean 'c"),
    (",metro\n", ",msa\n", "w.yaml:5:66: 'metro' is no column of 'areas.csv'"),
    (AREAS[AREAS.index("\n") :], "\n", "a.csv:1:1: this file has one line, which names the col"),
    (AREAS, AREAS.replace(",", ";"), "a.csv:1:1: semicolons seem to separate the fields; "),
    (AREAS, "  \n", "w.yaml:5:21: the file 'areas.csv' lists no value"),
]


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES)
def test_mistakes_in_the_file_are_named_at_their_lines(old, new, message):
    assert old in AREAS
    areas = AREAS.replace(old, new, 1)
    if message is None:
        assert read(areas=areas)
        return
    lines = mistakes(HEAD + "  - {name: a, product: {area: county}}\n", {"areas.csv": areas})
    assert any(line.startswith(message.replace("a.csv:", "areas.csv:")) for line in lines), lines


def test_codes_that_start_anew_in_every_group_are_named_once_with_a_remedy():
    areas = "state,county\n01,001\n01,003\n48,001\n48,003\n"
    text = HEAD.replace(LISTS, "[state, county]")
    lines = mistakes(text + "  - {name: a, product: {area: state}}\n", {"areas.csv": areas})
    (first,) = (line for line in lines if "another state" in line)
    assert first.startswith("areas.csv:4:1: this county lies in another state ")
    assert "in line 2, and 1 more like it" in first
    assert "such as 48001 for 001 of 48" in first


SPEC_MISTAKES = [
    (
        "area: county",
        "area: metro",
        "5:42: no item names the level 'state' of 'area'; ask for it, ",
    ),
    ("area: county", "area: metro", "5:49: no item names the level 'county' of 'area'; ask for it"),
    (LISTS, "[state, county, state]", "5:56: the level 'state' is named twice"),
    (LISTS, "[[state, county, tract], [metro]]", "5:66: 'metro' is the last level of this list"),
    (
        LISTS,
        "[[state, county, tract], [county, state, tract]]",
        "5:40: these lists put 'state' above 'county' above 'state'; write levels in one order",
    ),
    (LISTS, "[state, total, tract]", "5:48: 'total' means something else where questions name"),
    (
        LISTS,
        f"[{', '.join(f'l{k}' for k in range(33))}]",
        "5:40: 33 levels are named, more than the limit of 32; leave out those that no item asks",
    ),
    (LISTS, "[]", "5:40: expected levels, a list with at least one entry, found an empty list"),
    (LISTS, "[[], [tract]]", "5:41: expected levels, a list with at least one entry"),
    (LISTS, "tract", "5:40: expected levels, a list with at least one entry, found 'tract'"),
    (f", levels: {LISTS}", "", "5:9: 'hierarchy' needs the key 'levels'; add it"),
    ("hierarchy: areas.csv", "values: [a]", "5:31: attribute 'area' has levels and no hierarchy"),
    ("areas.csv", "../areas.csv", "5:21: '../areas.csv' leads out of the spec's folder"),
    ("sex: {values", "area_level: {values", "6:3: 'area_level' is the column in which the release"),
    ("area: county", "area: nation", "8:31: 'nation' is not a predicate set of 'area'; expected"),
    ("area: county", "area: countys", "8:31: 'countys' is not a predicate set of 'area'; did you"),
    ("area: county", "area: {level: nation}", "8:39: 'nation' is no level of 'area'; expected st"),
    ("area: county", "sex: {level: county}", "8:38: 'county' is no level of 'sex'; declare its"),
    (
        "area: county",
        "area: {level: county, within: {state: [49]}}",
        "8:64: '49' is no state of 'area'; expected 01, 48, ",
    ),
    (
        "area: county",
        "area: {level: county, within: {state: Texes}}",
        "8:63: 'Texes' is no state of 'area'; did you mean 'Texas'?",
    ),
    (
        "area: county",
        "area: {level: county, within: {metro: [M1]}}",
        "8:56: the county '01001' lies in more than one metro; name a level that holds every",
    ),
    (
        "area: county",
        "area: {level: county, within: {state: [48], county: [01001]}}",
        "8:39: no county of 'area' lies in all that `within` names; name fewer levels there",
    ),
    ("area: county", "area: {level: county, within: {}}", "8:55: no level is named; write {level"),
    ("area: county", "area: {is: 48, within: {state: 1}}", "8:48: `within` goes with `level`; to"),
    ("area: county", "area: {is: 48}", "8:36: '48' is not a value of 'area'; as a state, write {"),
    (
        "area: county",
        "area: {county: Baldwin}",
        "8:40: 'Baldwin' is the label of 2 groups of county; write the code of one: 01003 or 48003",
    ),
    ("area: county", "area: {is: Old town}", "8:36: 'Old town' stands for several values of 'ar"),
    ("area: county", "area: {state: 1, county: 1001}", "8:31: expected one group of 'area' such"),
    ("area: county", "area: {is: {stat: 48}}", "8:36: expected a value of 'area', found a mapping"),
]


@pytest.mark.parametrize(("old", "new", "message"), SPEC_MISTAKES)
def test_mistakes_in_levels_are_named_at_their_places(old, new, message):
    text = HEAD + "  - {name: a, product: {area: county}}\n"
    assert old in text
    lines = mistakes(text.replace(old, new, 1), FILES)
    assert any(line.startswith(f"w.yaml:{message}") for line in lines), lines


def test_two_levels_that_are_one_are_refused():
    areas = AREAS.replace(",metro\n", ",metro,msa\n")
    areas = re.sub(r",(M1|M2|none)\n", r",\1,\1\n", areas)
    text = HEAD.replace("[metro, tract]", "[msa, metro, tract]")
    lines = mistakes(text + "  - {name: a, product: {area: metro}}\n", {"areas.csv": areas})
    assert lines == [
        "w.yaml:5:71: the columns 'msa' and 'metro' are the same in every line, so that they are "
        "one level; leave one of them out"
    ]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "w.yaml").write_text(SPEC)
    contents = {
        "No such file": None,
        "this is not UTF-8; save the file as UTF-8": AREAS.replace("Plain", "Pläin").encode(
            "cp1252"
        ),
        f"it is larger than {MAX_SPEC_BYTES:,} bytes": b"a,b\n" * (MAX_SPEC_BYTES // 4 + 1),
    }
    for words, content in contents.items():
        if content is not None:
            (tmp_path / "areas.csv").write_bytes(content)
        with pytest.raises(SpecError, match=re.escape(words)) as caught:
            load_spec(tmp_path / "w.yaml")
        assert f"{tmp_path / 'w.yaml'}:5:21: " in str(caught.value)
        assert "areas.csv" in str(caught.value)
