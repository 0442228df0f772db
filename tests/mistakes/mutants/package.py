"""What is handed over beside the tables."""

from mutation import Mutant

PACKAGE = (
    Mutant(
        "a label becomes a formula in a spreadsheet",
        "whoever opens the file runs what the spec's author wrote",
        "csv_text",
        'return f"\'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text',
        "return text",
        ("test_package.py::test_no_cell_is_a_formula",),
    ),
    Mutant(
        "a package says when it was made",
        "the same release gives other bytes, and tells the time of the curator's clock",
        "write_workbook",
        '"created": _NEVER',
        '"created": datetime.now()',
        ("test_workbook.py::test_the_workbook_has_every_table_and_no_time",),
    ),
    Mutant(
        "a package takes the place of a folder that is none",
        "somebody's files are deleted",
        "_refuse_other_folders",
        "    if earlier is None:",
        "    if earlier is None and not names:",
        ("test_package_place.py::test_what_is_in_the_way_is_kept",),
    ),
    Mutant(
        "what lies beside a package's files is deleted with it",
        "somebody's notes are lost",
        "_refuse_other_folders",
        "    if foreign:",
        "    if foreign and not replace and earlier.key != manifest.key:",
        ("test_package_place.py::test_what_is_in_the_way_is_kept",),
    ),
    Mutant(
        "a package follows links",
        "a link to the records, put into a release's folder, is handed over with it",
        "_copy",
        "source.is_symlink() or not source.is_file()",
        "not source.is_file()",
        ("test_package_place.py::test_a_link_in_a_release_is_not_handed_over",),
    ),
    Mutant(
        "a column is typed in one file and text in another",
        "two tables of a release cannot be joined on what both have",
        "attribute_columns",
        "if index not in rules.labelled and _is_code_by_code",
        "if _is_code_by_code",
        ("test_package.py::test_a_column_has_one_type_in_all_files",),
    ),
    Mutant(
        "the edge of a bin is called its last value",
        "a record on the edge is counted in two ranges by its reader",
        "ColumnRules.upper",
        '"below" if self.below and is_binned(attribute) else "to"',
        '"to"',
        ("test_package.py::test_to_is_included_and_below_is_not",),
    ),
    Mutant(
        "words of a release are markup in its code book",
        "a page that somebody hands on runs what is in a label",
        "_marked_up",
        "escape(_spaced(text))",
        "_spaced(text)",
        ("test_package.py::test_the_code_book_is_a_whole_page_that_needs_nothing",),
    ),
)
