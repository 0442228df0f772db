"""How the ledger is kept: its place, its chain, caps and parents."""

from mutation import Mutant

LEDGER_STORAGE = (
    Mutant(
        "a ledger that others can write to is used",
        "anybody gives budget back",
        "_check_owner",
        "status.st_mode & 0o022:",
        "status.st_mode & 0o002:",
        ("test_ledger_place.py::test_a_ledger_that_others_could_change_is_refused",),
    ),
    Mutant(
        "a ledger of another user is used",
        "its owner gives budget back",
        "_check_owner",
        "    if status.st_uid != os.geteuid() or",
        "    if",
        ("test_ledger_place.py::test_a_ledger_of_another_user_is_refused",),
    ),
    Mutant(
        "a new ledger can be read by all",
        "who reads it sees every release before it is made public",
        "_write_empty",
        "os.O_NOFOLLOW, 0o600))",
        "os.O_NOFOLLOW, 0o644))",
        ("test_ledger_place.py::test_a_new_ledger_and_its_folders_are_private",),
    ),
    Mutant(
        "the ledger's folder can be entered by all",
        "who may enter it may find what is written there",
        "make_private_folder",
        "part.mkdir(mode=0o700,",
        "part.mkdir(mode=0o755,",
        ("test_ledger_place.py::test_a_new_ledger_and_its_folders_are_private",),
    ),
    Mutant(
        "network file systems are let through",
        "locks do not hold there, and processes pass the cap together",
        "check_local",
        "    if _is_network(mounted :=",
        "    if not (mounted :=",
        ("test_ledger_place.py::test_a_network_file_system_is_refused",),
    ),
    Mutant(
        "the ledger may be a link",
        "it is swapped for another one by its folder's owner",
        "check_safe",
        "_check_owner(path, path.lstat(),",
        "_check_owner(path, path.stat(),",
        ("test_ledger_place.py::test_a_link_is_not_followed",),
    ),
    Mutant(
        "a ledger may have two names",
        "each name has a log of its own, and one charges what the other does not see",
        "_check_owner",
        "status.st_nlink > 1:",
        "status.st_nlink > 9:",
        ("test_ledger_place.py::test_a_second_name_of_the_ledger_is_refused_under_both",),
    ),
    Mutant(
        "the log beside the ledger is not looked at",
        "whoever can write to it gives budget back",
        "_BESIDE",
        '    "-wal": stat.S_ISREG,\n',
        "",
        (
            "test_ledger_place.py::"
            "test_working_files_that_others_could_change_or_that_are_links_are_refused[-wal]",
        ),
    ),
    Mutant(
        "a ledger is made on a network file system, and refused there afterwards",
        "an empty ledger is left where it cannot be kept",
        "open_store",
        "        check_local(path)\n        if create and not path.exists():\n"
        "            _create(path)\n",
        "        if create and not path.exists():\n            _create(path)\n"
        "        check_local(path)\n",
        ("test_ledger_place.py::test_a_ledger_cannot_be_made_on_a_network_file_system",),
    ),
    Mutant(
        "a new ledger is written through its log",
        "made on a full disk it is an empty file that nobody can use",
        "_SCHEMA",
        "PRAGMA synchronous = EXTRA;\n",
        "PRAGMA journal_mode = WAL;\n",
        (
            "test_ledger_storage.py::"
            "test_a_new_ledger_is_whole_in_its_file_before_its_log_is_closed",
        ),
    ),
    Mutant(
        "events are not counted",
        "the last charges can be taken back",
        "Store.append",
        "PRAGMA user_version = {event.head.seq:d}",
        "PRAGMA user_version",
        ("test_ledger_tamper.py::test_every_event_taken_out_swapped_doubled_or_put_in_is_found",),
    ),
    Mutant(
        "any text is an event if its hash is sound",
        "what is shown, or charged, is not what is hashed",
        "events._read",
        "    if _text(kind=kind, day=day, fields=fields) != text:",
        "    if not text:",
        ("test_ledger_tamper.py::test_a_hostile_event_with_a_sound_hash_is_a_damaged_ledger",),
    ),
    Mutant(
        "a release that the ledger does not know gives way",
        "the one witness of what an older copy does not count is gone",
        "commands.release.release",
        "ledger.check_replaced(directory)",
        "pass",
        (
            "test_ledger_witness.py::test_a_release_that_the_ledger_does_not_know_is_never_replaced",
            "test_ledger_witness.py::test_a_ledger_made_anew_does_not_replace_what_the_lost_one_paid_for",
        ),
    ),
    Mutant(
        "a twin is told that it was charged",
        "whoever adds up what was said finds more than the ledger",
        "Ledger._stored",
        "entry.source, stored=True",
        "entry.source, stored=False",
        ("test_ledger_races.py::test_six_twins_are_one_charge_and_the_same_bytes",),
    ),
    Mutant(
        "events know the time of day",
        "how long a run took tells of the data",
        "Store.append",
        "datetime.now(UTC).date().isoformat()",
        "datetime.now(UTC).isoformat()",
        ("test_ledger.py::test_the_export_holds_public_facts_and_no_time_of_day",),
    ),
    Mutant(
        "a dataset takes another cap when it is planned again",
        "editing the spec gives budget back",
        "_registered",
        "    if recorded == declared:\n        return\n    if not account.spent",
        "    if recorded != declared and recorded.currency == declared.currency:\n"
        '        yield "change-cap", cap_fields(name, declared)\n'
        "        return\n"
        "    if recorded == declared:\n        return\n    if not account.spent",
        (
            "test_bad_input.py::"
            "test_a_cap_changed_in_the_spec_is_refused_until_it_is_changed_on_record",
        ),
    ),
    Mutant(
        "a cap on record changes its currency after charges",
        "a sum of unlike currencies bounds nothing",
        "_changed",
        "    if account.spent and not (",
        "    if not account and not (",
        ("test_ledger.py::test_a_cap_is_changed_on_record_and_in_its_currency_only",),
    ),
    Mutant(
        "a changed cap forgets what was spent",
        "changing the cap gives budget back",
        "LedgerState._set_cap",
        "replace(self.accounts[dataset], cap=cap)",
        "Account(dataset, cap)",
        ("test_ledger.py::test_a_cap_is_changed_on_record_and_in_its_currency_only",),
    ),
    Mutant(
        "rows and persons are charged to one account",
        "losses of unlike units do not add up",
        "check_unit",
        "    if recorded.unit != unit:",
        "    if not recorded.unit:",
        ("test_ledger.py::test_charges_for_different_units_are_never_added_up",),
    ),
    Mutant(
        "a parent is not charged",
        "every dataset of the same people has a budget of its own",
        "LedgerState._reserve",
        "        for payer in (account, self.parent_of(account)):",
        "        for payer in (account,):",
        ("test_ledger_parent.py::test_every_charge_of_a_dataset_is_its_parents_too_in_one_event",),
    ),
    Mutant(
        "a parent's cap is not looked at",
        "all datasets of the same people together pass the cap",
        "Funds.fits",
        "for payer in self.payers",
        "for payer in (self.account,)",
        ("test_ledger_parent.py::test_the_message_names_the_cap_that_refuses_and_what_remains",),
    ),
    Mutant(
        "a dataset brings nothing of what it spent to its parent",
        "what was spent before is spent again on the same people",
        "LedgerState._adopt",
        "parent.charged(child.spent, child.pure)",
        "parent",
        (
            "test_ledger_parent.py::test_a_dataset_charged_before_brings_what_it_spent_to_its_parent",
        ),
    ),
    Mutant(
        "a spec that names a parent is charged without it",
        "every dataset of the same people has a budget of its own",
        "check_parent",
        "    if parent is not None and account.parent != parent:",
        "    if parent is not None and not account:",
        ("test_ledger_parent.py::test_a_spec_that_names_a_parent_is_not_charged_without_it",),
    ),
    Mutant(
        "a dataset leaves its parent when its spec does not name it",
        "editing the spec gives budget back",
        "_check_same_parent",
        "    if account.parent is not None:\n        named",
        "    if account.parent is not None and parent_name is not None:\n        named",
        (
            "test_ledger_parent.py::test_registering_again_changes_nothing_and_any_difference_is_a_conflict",
        ),
    ),
    Mutant(
        "a charge that leaves the parent out is taken from the chain",
        "an event can be written that charges one account of two",
        "LedgerState._reserve",
        '        if event.fields.get("parent") != account.parent:',
        '        if "parents" in event.fields:',
        (
            "test_ledger_parent_history.py::test_a_sound_hash_over_a_charge_that_leaves_the_parent_out_is_found",
        ),
    ),
    Mutant(
        "only the parent's cap is looked at",
        "a dataset spends more than its own cap",
        "Funds.fits",
        "for payer in self.payers",
        "for payer in self.payers[-1:]",
        ("test_ledger_parent.py::test_the_message_names_the_cap_that_refuses_and_what_remains",),
    ),
    Mutant(
        "a dataset and its parent protect unlike units",
        "losses of rows and of persons are added up, which bounds nothing",
        "check_families",
        "(unit_kind(parent.cap.unit), unit_kind(account.cap.unit)),",
        "(unit_kind(account.cap.unit), unit_kind(account.cap.unit)),",
        (
            "test_ledger_parent.py::"
            "test_a_dataset_and_its_parent_are_charged_in_one_currency_for_one_kind_of_unit",
        ),
    ),
    Mutant(
        "a dataset and its parent are kept in unlike currencies",
        "an epsilon is added to a sum of rho",
        "check_families",
        "(parent.cap.currency, account.cap.currency),",
        "(account.cap.currency, account.cap.currency),",
        (
            "test_ledger_parent.py::"
            "test_a_dataset_and_its_parent_are_charged_in_one_currency_for_one_kind_of_unit",
        ),
    ),
    Mutant(
        "a dataset comes under a parent that has no room for what it spent",
        "more than the parent's cap is spent",
        "_adoption",
        "    if account.spent and not parent.admits(account.spent, account.pure):",
        "    if False:",
        (
            "test_ledger_parent.py::"
            "test_a_dataset_that_spent_more_than_its_parent_has_left_does_not_come_under_it",
        ),
    ),
    Mutant(
        "kinds of noise are compared without a look at the parent's account",
        "a release is chosen that will be refused",
        "BudgetShares.share",
        "max(shares)",
        "shares[0]",
        (
            "test_equal_share.py::"
            "test_once_a_release_was_not_pure_laplace_noise_is_compared_by_what_it_then_costs[True]",
        ),
    ),
    Mutant(
        "a ledger of two names is used",
        "SQLite keeps two logs of it, and each has lost the other's charges",
        "_check_owner",
        "    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:",
        "    if stat.S_ISREG(status.st_mode) and not status.st_nlink:",
        ("test_ledger_place.py::test_a_second_name_of_the_ledger_is_refused_under_both",),
    ),
    Mutant(
        "the files beside the ledger may be anybody's",
        "a write-ahead log of another user gives budget back",
        "check_safe",
        "            _check_owner(beside, beside.lstat(), kind=kind)\n",
        "            beside.lstat()\n",
        (
            "test_ledger_place.py::"
            "test_working_files_that_others_could_change_or_that_are_links_are_refused",
        ),
    ),
    Mutant(
        "the parts of an unfinished run are taken without their seal",
        "parts of another run are continued, and what was drawn is drawn again",
        "PartialMeasurement.parts",
        "if len(values) % 8 or seal != self._sealing(file, values):",
        "if len(values) % 8:",
        (
            "test_adaptive_resumed.py::"
            "test_a_run_whose_parts_were_damaged_says_so_draws_nothing_and_can_be_given_up",
        ),
    ),
    Mutant(
        "the text of SQLite's errors travels on",
        "an error says what is in the ledger",
        "scrubbed",
        "    raise failure from None",
        "    raise failure",
        ("test_ledger_storage.py::test_what_is_not_a_ledger_is_refused_in_our_words",),
    ),
)
