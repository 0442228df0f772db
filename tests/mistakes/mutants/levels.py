"""Hierarchies of values: which values lie in a group, and what a row says of it."""

from mutation import Mutant

FILE = "test_hierarchies_in_specs.py::"
MISTAKES = "test_hierarchy_files.py::"
COUNTS = f"{FILE}test_items_by_level_are_the_counts_of_pandas"
ROWS = f"{FILE}test_rows_have_label_code_and_level_and_join"
TWIN = f"{FILE}test_a_level_asks_what_the_same_groups_written_out_ask"
CODES = f"{MISTAKES}test_codes_that_start_anew_in_every_group_are_named_once_with_a_remedy"
LEVELS = (
    Mutant(
        "members of a group are those of the group after it",
        "counties are published under each other's names",
        "HierarchyLevel.members",
        "members[group].append(value)",
        "members[group - 1].append(value)",
        (COUNTS, TWIN),
    ),
    Mutant(
        "groups have the codes of their level in the order of the alphabet",
        "a file that is not sorted gives groups each other's codes",
        "_Column.level",
        "tuple(first), labels",
        "tuple(sorted(first, reverse=True)), labels",
        (ROWS,),
    ),
    Mutant(
        "a county may lie in two states",
        "codes that start anew in every state are added up over the nation",
        "_check_nested",
        "if not crossing:",
        "if crossing or not crossing:",
        (CODES,),
    ),
    Mutant(
        "of several levels within which groups lie the last decides",
        "counties of another state are in the table",
        "_lying_in",
        "return [group for group in groups if",
        "return [group for group in range(len(level.codes)) if",
        (COUNTS,),
    ),
    Mutant(
        "what a level lies within is not looked at beyond its first value",
        "a group is said to lie in one that holds a part of it",
        "_lying_in",
        "if outer_of.setdefault(group, other) != other:",
        "if outer_of.setdefault(group, other) is None:",
        (f"{MISTAKES}test_mistakes_in_levels_are_named_at_their_places",),
    ),
    Mutant(
        "a label names the first group that has it",
        "one Washington County is taken for another",
        "_named_group",
        "if len(groups) > 1:",
        "if len(groups) > 99:",
        (f"{MISTAKES}test_mistakes_in_levels_are_named_at_their_places",),
    ),
    Mutant(
        "codes are read as numbers",
        "01 becomes 1, and joins with nothing",
        "_Column.__init__",
        "self._code(line, line.cells[place])",
        'self._code(line, line.cells[place].lstrip("0"))',
        (f"{FILE}test_codes_match_by_text_or_number_and_unknown_ones_go_where_others_do",),
    ),
    Mutant(
        "rows that are no group have the first code",
        "the total stands under the code of a state",
        "_by_level",
        "(NO_RANGE, NO_RANGE)",
        "(0, 0)",
        (f"{FILE}test_items_of_very_many_tables_have_levels_in_their_labels",),
    ),
    Mutant(
        "what is asked by level has the key of what is asked by groups",
        "answers without levels are taken for those with them",
        "answers._predicates",
        "if named else {}",
        "if named == ((),) else {}",
        ("test_release_key_fields.py::test_another_question_makes_other_answers[GroupSet.named]",),
    ),
)
