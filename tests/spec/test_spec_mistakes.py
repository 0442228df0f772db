"""All mistakes in a spec or in questions are named at their places, and nothing else is raised."""

import os
from pathlib import Path

import pytest
from specs import BASE
from town import refused

from dpquery.exceptions import SpecError
from dpquery.spec import problems
from dpquery.spec.parsing import predicate_sets
from dpquery.spec.parsing.read import load_spec, parse

CASES = (Path(__file__).parent / "spec_mistakes.txt").read_text(encoding="utf-8")


def mistakes(text: str, files: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(text, name="w.yaml", files=files or {})
    return str(caught.value).split("\n")


def cases() -> list[tuple[str, str, list[str]]]:
    """Return (text in BASE, what replaces it, messages expected) of each case."""
    all_cases = []
    for block in CASES.split("\n\n"):
        lines = block.strip("\n").split("\n")
        if lines[0].startswith("- "):
            old, new = (line[2:].replace("\\n", "\n") for line in lines[:2])
            all_cases.append((old, new, [f"w.yaml:{line[2:]}" for line in lines[2:]]))
    return all_cases


@pytest.mark.parametrize(("old", "new", "messages"), cases())
def test_a_mistake_is_named_at_its_place(old: str, new: str, messages: list[str]) -> None:
    assert old in BASE
    assert mistakes(BASE.replace(old, new, 1)) == messages


def test_a_missing_colon_is_found_above_any_number_of_empty_lines():
    """The lines are split once: once for each line would take hours."""
    text = BASE.replace("  - name: first\n", "  - name first\n" + "\n" * 200_000)
    assert mistakes(text) == [
        "w.yaml:13:9: this is not YAML: 'name' has no colon; write `name: first`"
    ]


def test_mistakes_come_all_at_once_in_order_of_place() -> None:
    text = BASE
    for old, new in (
        ("version", "verson"),
        ("row", "rov"),
        ("[0, 9]", "[9, 0]"),
        ("prefix", "prefixx"),
        ("sex: identity", "sxe: identity, hispanic: {is: 3}"),
    ):
        text = text.replace(old, new, 1)
    text += "  - {name: first, weight: -1, where: {income: 3}, marginals: {ways: 9}}\n"
    assert [line.split(" ")[0] for line in mistakes(text)] == [
        "w.yaml:1:23:",
        "w.yaml:2:17:",
        "w.yaml:6:16:",
        "w.yaml:14:29:",
        "w.yaml:14:59:",
        "w.yaml:15:12:",
        "w.yaml:15:27:",
        "w.yaml:15:47:",
    ]


def test_a_broken_attribute_is_not_reported_again_wherever_it_is_used() -> None:
    assert mistakes(BASE.replace("[0, 9]", "[9, 0]").replace("[Male, Female]", "[]")) == [
        "w.yaml:6:16: the range [9, 0] is empty; put the lowest value first",
        "w.yaml:7:17: no value is listed; list at least one",
    ]
    for domain in ("domain: {}\n", "domain: 3\n", ""):
        text = BASE[: BASE.index("domain:")] + domain + BASE[BASE.index("workload:") :]
        assert len(mistakes(text)) == 1


def test_an_attribute_whose_least_matter_is_at_fault_is_still_judged_where_it_is_used() -> None:
    text = BASE.replace("Female]", "Female], other: keep").replace(
        "boolean\n", "{boolean: {true: 3}}\n", 1
    )
    assert mistakes(text.replace("sex: identity", "sex: {is: X}, hispanic: {is: maybe}")) == [
        "w.yaml:7:40: 'keep' is not what to do with other values; expected count, show or drop",
        "w.yaml:10:30: expected texts for true, a list with at least one entry, found '3'",
        "w.yaml:14:38: 'X' is not a value of 'sex'; expected Male or Female",
        "w.yaml:14:57: 'maybe' is not a value of 'hispanic'; expected yes or no",
    ]


def test_values_of_one_list_that_are_none_are_one_mistake() -> None:
    asked = "sex: {in: [X, Femal, Male, Y]}, hispanic: {in: [maybe, perhaps]}"
    assert mistakes(BASE.replace("sex: identity", asked)) == [
        "w.yaml:14:39: 'X', 'Femal' and 'Y' are not values of 'sex'",
        "w.yaml:14:76: 'maybe' and 'perhaps' are not values of 'hispanic'; expected yes or no",
    ]


def test_a_mistake_behind_an_anchor_is_reported_once() -> None:
    items = "  - {name: b, product: {sex: &no {is: X}}}\n" + "".join(
        f"  - {{name: b{i}, product: {{sex: *no}}}}\n" for i in range(9)
    )
    (message,) = mistakes(BASE + items)
    assert message.startswith("w.yaml:15:39: 'X' is not a value of 'sex'")


def test_a_word_that_is_one_value_and_another_ones_label_is_refused() -> None:
    text = BASE.replace("[Male, Female]", "{1: 2, 2: 3}").replace("sex: identity", "sex: {is: 2}")
    assert mistakes(text) == [
        "w.yaml:14:38: '2' is a value of 'sex' and the label of another one; change that label"
    ]
    parse(text.replace("is: 2", "is: 3"), name="w.yaml", files={})


def test_characters_that_yaml_forbids_are_named() -> None:
    assert mistakes("domain: 1\nbudget: \x07") == [
        "w.yaml:2:9: the character U+0007 cannot stand in YAML; remove it"
    ]


def test_an_empty_file_says_how_to_start() -> None:
    for text in ("", "# nothing\n"):
        (message,) = mistakes(text)
        assert message == "w.yaml:1:1: the file is empty; `dpquery init` writes a spec to edit"


def test_long_reports_and_long_texts_are_cut() -> None:
    items = "".join(f"  - {{name: i{i}, product: {{x{'y' * 99}: identity}}}}\n" for i in range(150))
    messages = mistakes(BASE + items)
    assert len(messages) == 101
    assert messages[-1] == "w.yaml: and 50 more mistakes after these"
    assert max(map(len, messages)) < 200


# What would take unreasonable time or memory is refused before it does.


def test_alias_bombs_are_refused() -> None:
    bomb = "domain: a\nbudget: b\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9)
    )
    (message,) = mistakes(bomb)
    assert message.endswith("more than 1,000,000 entries, aliases counted each time; use fewer")


def test_an_anchor_inside_itself_is_refused() -> None:
    (message,) = mistakes("domain: a\nbudget: &a [*a]")
    assert message == "w.yaml:2:13: no anchor &a stands before this; define it first"


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 5_000, "? " * 5_000])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "nested deeper than 40 levels" in mistakes(f"domain: a\nbudget: b\nc:\n {text}")[0]


def test_long_texts_are_refused() -> None:
    assert "longer than 10,000,000 characters" in mistakes("#" * 10_000_001)[0]


WIDE = BASE[: BASE.index("domain:")] + "domain:\n"
WIDE += "".join(f"  a{i}: {{range: [0, 999999]}}\n" for i in range(60)) + "workload:\n"


@pytest.mark.nightly(daily="product|ways")
@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("marginals: {ways: 30}", "118,264,581,564,861,424 tables or more, past the limit of 1,0"),
        ("marginals: {max_cells: 100000000000000000}", "tables or more, past the limit of 1,000"),
        ("product: {a0: identity, a1: prefix, a2: prefix}", "asks 1,000,000,000,000,000,000 quer"),
        ("product: {a0: all-ranges, a1: [identity, total]}", "more than the limit of 1,099,511,6"),
        ("product: {a0: {groups: {%s}}}", "lists of the spec name over 8,388,608 values"),
    ],
)
def test_workloads_past_the_limits_are_refused(item: str, message: str) -> None:
    wide = WIDE.replace("999999", "1") if "max_cells" in item else WIDE
    if "%s" in item:
        item %= ", ".join(f"g{i}: [[0, 999999]]" for i in range(9))
    (only,) = mistakes(f"{wide}  - {{name: it, {item}}}\n")
    assert message in only


def test_too_many_listed_values_are_reported_once_with_what_to_write_instead() -> None:
    items = "".join(
        f"  - {{name: it{i}, product: {{}}, where: {{a0: {{in: [[0, 900000]]}}}}}}\n"
        for i in range(12)
    )
    (message,) = mistakes(WIDE + items)
    assert message.startswith(f"w.yaml:{(WIDE + items).count(chr(10)) - 2}:")
    assert "write a range as {between: [first, last]}" in message


def test_only_the_codes_that_a_condition_holds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "MAX_LISTED_VALUES", 20_000)
    merged = BASE[: BASE.index("domain:")] + (
        "domain:\n  who: {merge: {a: {range: [0, 99]}, r: {range: [0, 49]}, s: boolean}}\n"
        "workload:\n  - {name: it, product: {who: {groups: {%s}}}}\n"
    )
    groups = [f"g{i}: [{{a: {i % 100}, r: {i // 100}, s: yes}}]" for i in range(500)]
    parse(merged % ", ".join(groups), name="w.yaml", files={})
    either = [f"g{i}: [{{any: {{a: {i % 100}, s: yes}}}}]" for i in range(9)]
    (message,) = mistakes(merged % ", ".join(either))
    assert "ask for fewer groups" in message
    assert "range" not in message


def test_descriptions_may_be_long_but_not_without_end() -> None:
    items = "".join(
        f"  - {{name: it{i}, description: {'x' * 10_000}, product: {{}}}}\n" for i in range(11)
    )
    parse(WIDE + items[: items.index("  - {name: it10")], name="w.yaml", files={})
    (messages,) = mistakes(WIDE + items)
    assert "over 100,000 characters in all" in messages


def test_tables_are_counted_over_the_whole_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicate_sets, "MAX_TABLES", 20)
    items = "  - {name: a, union: [&u {marginals: {ways: 2}}]}\n"
    parse(BASE + items, name="w.yaml", files={})
    (message,) = mistakes(f"{BASE}{items}  - {{name: b, union: [*u]}}\n")
    assert message.startswith("w.yaml:16:5: this makes 31 tables or more, past the limit of 20")
    (message,) = mistakes(BASE + items.replace("}]}", "}, *u]}"))
    assert message.startswith("w.yaml:15:23: this makes 30 tables or more")


def test_files_outside_the_folder_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a\n")
    folder = tmp_path / "specs"
    folder.mkdir()
    os.symlink(tmp_path / "secret.txt", folder / "link.txt")
    spec = folder / "w.yaml"
    for name in ("../secret.txt", str(tmp_path / "secret.txt"), "link.txt", "a/../../secret.txt"):
        spec.write_text(BASE.replace("values: [Male, Female]", f"values_file: {name}"))
        with pytest.raises(SpecError, match=r"w\.yaml:7:22: .*leads out of the spec's folder"):
            load_spec(spec)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    spec = tmp_path / "w.yaml"
    with pytest.raises(SpecError, match=r"w\.yaml cannot be read: No such file"):
        load_spec(spec)
    with pytest.raises(SpecError, match=r"cannot be read: Is a directory"):
        load_spec(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match=r"it is a pipe; write it to a file first"):
        load_spec(tmp_path / "pipe")
    spec.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(SpecError, match=r"w\.yaml:2:1: this is not UTF-8"):
        load_spec(spec)
    spec.write_bytes(b"#" * 10_000_001)
    with pytest.raises(SpecError, match="larger than 10,000,000 bytes"):
        load_spec(spec)
    spec.write_text(BASE.replace("values: [Male, Female]", "values_file: none.txt"))
    with pytest.raises(SpecError, match=r"w\.yaml:7:22: .*none\.txt cannot be read: No such file"):
        load_spec(spec)
    with pytest.raises(SpecError, match=r"w\.yaml:7:22: the value list 'none.txt' is missing"):
        parse(spec.read_text(), name="w.yaml", files={})


LIST = 'M\nM\n\n"F\nA,B,C\nN,M\nM\nM\n'


def test_mistakes_in_a_value_list_name_its_lines() -> None:
    text = BASE.replace("values: [Male, Female]", "values_file: s.txt").replace("r: row", "r: rov")
    assert mistakes(text.replace("prefix", "prefixx"), {"s.txt": LIST}) == [
        "w.yaml:14:20: 'prefixx' is not a predicate set of 'age'; did you mean 'prefix'?",
        "s.txt:2:1: the value of column 'sex' is given twice, first at 1:1, and 2 more like it; "
        "keep one",
        "s.txt:4:1: the quotes do not pair up; double a quote inside",
        "s.txt:5:1: expected a value, or a value and its label, found 3 fields; put text with "
        "delimiters in double quotes, or name the columns code and label in a first line",
        "s.txt:6:1: the label of column 'sex' is given twice, first at 1:1; keep one",
    ]


# Whatever the text, nothing but a SpecError comes out.


# A file of questions, about a release.

MISTAKES = {
    "dataset: {id: city}\n": "more.yaml:1:10: the dataset's id is 'city' here and 'town' in the",
    "privacy: {unit: row, neighbours: replace}\n": "neighbours is 'replace' here and 'add-remove'",
    "budget: {epsilon: 9}\n": "the budget's epsilon is '9' here and '4' in the release",
    "domain: {age: {range: [0, 9]}}\n": "attribute 'age' is declared otherwise in the release: "
    "11 codes (0, 1, 2, ... other), other: count here, 5 codes (0, 1, 2, ... 4), other: drop there",
    "domain: {shoe: {range: [0, 9]}}\n": "attribute 'shoe' is not in the release's domain",
    "other: drop\ndomain: {age: {range: [0, 4]}}\n": "the release's domain has 'sex' too",
    "epsilon: 3\n": "a file of questions has no key 'epsilon'",
}


@pytest.mark.parametrize("section", MISTAKES)
def test_what_a_spec_says_beside_its_workload_must_be_the_release_s(
    released_town: Path, section: str
) -> None:
    Path("more.yaml").write_text(
        section + "workload:\n  - {name: a, product: {age: prefix}}\n  - {name: b, product: 3}\n"
    )
    message = refused("answer", "release", "more.yaml", code=2)
    assert MISTAKES[section] in message
    line = 3 + section.count("\n")
    assert f"more.yaml:{line}:24: expected the product" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty"),
        ("workload: []\n", "a list with at least one entry"),
        ("dataset: {id: town}\n", "needs the key 'workload'"),
        ("workload: [{name: a, product: {aeg: identity}}]", "did you mean 'age'?"),
        (
            "workload: [{name: measurements, product: {age: identity}}]",
            "use a-z, 0-9, _ and -, and not 'measurements'",
        ),
        ("workload: [", "this is not YAML"),
    ],
)
def test_mistakes_in_questions_are_told_as_in_a_spec(
    released_town: Path, text: str, expected: str
) -> None:
    Path("more.yaml").write_text(text)
    assert expected in refused("answer", "release", "more.yaml", code=2)
    Path("more.yaml").unlink()
    assert "more.yaml cannot be read" in refused("answer", "release", "more.yaml", code=2)
