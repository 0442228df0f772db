"""Mistakes in files of hierarchies, and in specs that ask by level, are named at their places."""

import re

import pytest
from damage import chance, check_places
from test_hierarchies_in_specs import AREAS, FILES, HEAD, LISTS, SPEC, read
from test_spec_mistakes import mistakes

from dpquery.exceptions import SpecError
from dpquery.limits import MAX_SPEC_BYTES
from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import load_spec, parse

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
    (f", levels: {LISTS}", "", "5:9: a hierarchy needs the key 'levels'; add it"),
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


def _damaged_files(count, seed):
    draw = chance(seed)
    cells = [
        "",
        "01",
        "1",
        "01001",
        "state",
        ",",
        '"',
        "M1",
        "\x00",
        "é",
        " ",
        "\r",
        "=1",
        "9" * 70,
    ]
    for _ in range(count):
        lines = [line.split(",") for line in AREAS.splitlines()]
        for _ in range(draw.randint(1, 5)):
            line = draw.choice(lines)
            what = draw.randint(0, 4)
            if what == 0 and len(lines) > 1:
                lines.remove(line)
            elif what == 1:
                lines.insert(draw.randint(0, len(lines)), list(line))
            elif what == 2 and len(line) > 1:
                line.pop(draw.randrange(len(line)))
            else:
                line[draw.randrange(len(line))] = draw.choice(cells)
        yield "\n".join(",".join(line) for line in lines)


@pytest.mark.nightly
def test_damaged_files_are_read_or_refused_by_place(record_property):
    read_well = 0
    for areas in _damaged_files(250, seed=2):
        text = SPEC.replace("areas.csv", "list.txt")
        try:
            spec = parse(text, name="w.yaml", files={"list.txt": areas})
        except SpecError as error:
            check_places(str(error))
            continue
        read_well += 1
        compile_spec(spec)
        levels = spec.domain.attributes[0].levels
        for level in levels:
            assert sorted(sum(level.members, ())) == list(range(len(levels[-1].codes)))
            assert len(set(level.codes)) == len(level.codes)
    assert read_well > 12
    record_property("bad inputs", 250)
