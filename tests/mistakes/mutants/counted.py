"""Who is counted, where a value is not declared."""

from mutation import Mutant

SAYS = "test_who_is_counted.py::test_every_predicate_counts_what_it_says"
SURVEY = "test_who_is_counted.py::test_a_survey_with_blanks_and_text_answers_counts_everyone"
MERGED = (
    "test_who_is_counted.py::test_a_merged_attribute_shows_what_each_of_its_columns_shows"
    "[count-count-count]"
)
COUNTED = (
    Mutant(
        "a total leaves out the records without a declared value",
        "a survey of 17,137 people is published as 5,837",
        "compile.factor",
        "            return total(n)\n",
        "            return Groups.of((tuple(range(max(1, n - 1))),), n)\n",
        (SURVEY, f"{SAYS}[count-count]"),
    ),
    Mutant(
        "other texts are shown where they are only counted",
        "a table has a row that the spec did not ask for",
        "IdentitySet.of",
        "if attribute.shown == attribute.size",
        "if attribute.size",
        (SURVEY, f"{SAYS}[count-show]", MERGED),
    ),
    Mutant(
        "a column of a merged attribute shows other where another column does",
        "rows of records that have no declared value",
        "IdentitySet.of",
        "(column.size, column.shown)",
        "(column.size, max(own.shown for own in attribute.columns))",
        (MERGED.replace("count-count-count", "count-show-drop"),),
    ),
    Mutant(
        "other is counted twice: in the last declared value too",
        "one record moves two cells of a table",
        "compile.factor",
        "            return Identity(n) if every else IdentityRows(n, shown)\n",
        "            if every:\n"
        "                return Identity(n)\n"
        "            codes = [(int(code),) for code in shown]\n"
        "            return Groups.of((*codes[:-1], (*codes[-1], n - 1)), n)\n",
        (SURVEY, f"{SAYS}[count-drop]"),
    ),
    Mutant(
        "a line that is no record counts where columns drop such values",
        "the total is of lines, and the tables are of records",
        "_Tally.__init__",
        "any(column.drops for column in spec.domain.columns)",
        "all(column.drops for column in spec.domain.columns)",
        ("test_who_is_counted.py::test_where_one_column_drops_its_strange_values_are_in_no_table",),
    ),
    Mutant(
        "columns that no question uses drop records all the same",
        "a record's part in a table depends on a column that the table does not use",
        "code_of",
        "_OUTSIDE if column.drops else column.length",
        '_OUTSIDE if column.other != "show" else column.length',
        (
            SURVEY,
            "test_who_is_counted.py::test_tables_without_a_column_do_not_see_what_it_holds[1]",
        ),
    ),
    Mutant(
        "an older plan is read by today's default",
        "a release that was paid for has another key, and is charged again",
        "plan_and_spec",
        "first_edition=plan.first_edition",
        "first_edition=False",
        ("test_who_is_counted.py::test_a_plan_file_of_format_1_is_read_so",),
    ),
    Mutant(
        "a threshold that is counted column by column is one less than it says",
        "records with too few of the predicates are counted",
        "threshold_apply",
        "            if count < most:\n",
        "            if count <= most:\n",
        (
            "test_thresholds.py::"
            "test_products_by_sets_and_by_attributes_are_those_of_the_dense_matrix[0]",
            "test_who_is_counted.py::"
            "test_a_threshold_over_twenty_columns_is_answered_from_their_table",
        ),
    ),
)
