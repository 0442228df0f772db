"""Showing what the records hold, to those who may see them."""

from mutation import Mutant

TRACE = "test_check_command.py::test_a_check_opens_no_ledger_and_writes_no_file"
CHECK = (
    Mutant(
        "dates that are declared do not speak for their format",
        "one text in another form moves the whole column to that form",
        "_wider",
        "declared = odd.declared if style == dates.format else 0",
        "declared = 0",
        ("test_offered_declarations.py::test_dates_are_offered_the_format_that_most_records_fit",),
    ),
    Mutant(
        "a check prints to a pipe without being told",
        "true counts end up in a log",
        "check_command",
        "    if not (sys.stdout.isatty() or to_pipe):\n",
        "    if not (sys.stdout or to_pipe):\n",
        (
            "test_check_command.py::test_without_a_terminal_nothing_is_shown_and_the_data_are_not_opened",
            "test_check_command.py::test_a_process_whose_stdout_is_a_file_refuses",
        ),
    ),
    Mutant(
        "a check opens the ledger",
        "what somebody looked at is on record, and a ledger is made where there is none",
        "check_command",
        "    forbid_dumps()\n",
        "    forbid_dumps()\n"
        "    from dpquery.cli.options import ledger_path\n"
        "    from dpquery.measurement.ledger.ledger import Ledger\n\n"
        "    with Ledger.open(ledger_path(None), create=True):\n"
        "        pass\n",
        (
            TRACE,
            "test_check_command.py::test_a_check_needs_no_ledger_and_makes_none",
            "test_check_command.py::"
            "test_a_check_loads_neither_ledger_nor_noise_and_a_release_loads_no_check",
        ),
    ),
    Mutant(
        "a check leaves what it shows in a file",
        "true counts lie beside the release",
        "check_command",
        "    show(PRIVATE)\n",
        '    Path("check.txt").write_text(PRIVATE)\n    show(PRIVATE)\n',
        (TRACE,),
    ),
    Mutant(
        "a check does not say that it is private",
        "true counts are taken for a part of the release",
        "check_command",
        "    show(PRIVATE)\n",
        "    _ = show, PRIVATE\n",
        ("test_check_command.py::test_what_matters_comes_first_below_a_warning",),
    ),
    Mutant(
        "a release looks at the records as a check does",
        "true counts are where they can be written",
        "commands.release.release",
        "    content = _bytes_of(",
        "    from dpquery.data_check import check as check\n\n    content = _bytes_of(",
        (
            "test_architecture.py::test_the_package_keeps_the_rule[the_check_of_data_lies_apart]",
            "test_architecture.py::"
            "test_no_way_of_a_release_leads_to_the_check_of_data_and_none_from_it_to_the_ledger",
        ),
    ),
    Mutant(
        "a check codes values by a rule of its own",
        "it says that all is as declared, and the release leaves records out",
        "ColumnTally.add",
        "            codes = self._codes.of(distinct)\n",
        "            codes = self._codes.of(distinct.take([0] * len(distinct)))\n",
        ("test_data_check.py::test_whatever_the_lines_as_many_are_kept_as_a_release_counts",),
    ),
    Mutant(
        "a check ends well whatever it finds",
        "a Makefile goes on to a release that leaves half of the records out",
        "DataCheck.as_declared",
        "        return not (dropped or unclear or self.records.malformed.records)\n",
        "        return not (dropped and unclear and self.records.malformed.records)\n",
        ("test_check_command.py::test_the_exit_code_says_whether_all_is_as_declared",),
    ),
    Mutant(
        "a check opens what a variable holds as if it were a file",
        "a password is in a message",
        "FileRecords.__init__",
        "isinstance(source, StoredFile):\n                with open_regular(source.path)",
        "source:\n                with open_regular(source.place[0])",
        (
            "test_check_command.py::"
            "test_what_a_variable_holds_is_in_no_message_of_a_check[a server]",
        ),
    ),
)
