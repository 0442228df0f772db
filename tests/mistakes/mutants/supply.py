"""What the product stands on, and the process it runs in."""

from mutation import Mutant

SUPPLY = (
    Mutant(
        "versions are not checked before the charge",
        "a biased sampler is found out after the budget is spent, or not at all",
        "measure",
        "        check_libraries()\n",
        "",
        (
            "test_supply.py::test_a_version_not_to_be_trusted_ends_before_the_charge_and_before_the_data",
        ),
    ),
    Mutant(
        "a biased OpenDP is accepted",
        "noise of another law than the one that is charged for",
        "ACCEPTED",
        'Accepted("0.16.0", below="0.17")',
        'Accepted("0.14.0", below="0.17")',
        ("test_supply.py::test_the_bounds_checked_at_run_time_are_those_of_the_project",),
    ),
    Mutant(
        "a version before a release passes for the release",
        "code that nobody released draws the noise",
        "_order",
        "    return numbers, 0 if ",
        "    return numbers, 1 if ",
        ("test_supply.py::test_versions_are_compared_as_numbers",),
    ),
    Mutant(
        "edited files pass the audit",
        "a library that was changed after its installation is not noticed",
        "_has_hash",
        "decode() == expected.value",
        'decode() != ""',
        ("test_supply.py::test_a_changed_lost_added_or_shadowed_file_is_found",),
    ),
    Mutant(
        "a module from elsewhere passes the audit",
        "the files that are checked are not the ones that run",
        "files_finding",
        "_imported(name) not in hashed",
        "_imported(name) is None",
        ("test_supply.py::test_a_changed_lost_added_or_shadowed_file_is_found",),
    ),
    Mutant(
        "a crash may leave a core dump",
        "all records, on disk",
        "release_command",
        "    forbid_dumps()\n",
        "",
        ("test_threats.py::test_row_33_a_crash_of_the_process_leaves_no_dump_and_no_values",),
    ),
    Mutant(
        "other processes may read the memory",
        "all records, to any program of the same user, and to one that the kernel hands dumps to",
        "forbid_dumps",
        "        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)\n",
        "        ctypes.CDLL(None)\n",
        ("test_threats.py::test_row_33_no_other_process_of_the_user_may_read_the_memory",),
    ),
)
