"""The ledger and the order of a release."""

from mutation import Mutant

LEDGER = (
    Mutant(
        "the charge comes after the draw",
        "a run that fails in between has cost nothing",
        "measure",
        "        ledger.reserve(\n"
        "            dataset,\n"
        "            key=key,\n"
        "            price=price,\n"
        "            native={guarantee.kind: str(guarantee.amount)},\n"
        '            details={"version": query.spec.dataset.version, '
        '"release": query.release},\n'
        "        )\n"
        "        tables = _charged_tables(data, query, memory)\n",
        "        tables = _charged_tables(data, query, memory)\n"
        "        ledger.reserve(\n"
        "            dataset,\n"
        "            key=key,\n"
        "            price=price,\n"
        "            native={guarantee.kind: str(guarantee.amount)},\n"
        '            details={"version": query.spec.dataset.version, '
        '"release": query.release},\n'
        "        )\n",
        (
            "test_adaptive_resumed.py::test_the_charge_is_durable_before_the_data_is_read",
            "test_release_protocol.py::test_a_run_killed_at_any_moment_is_completed_by_the_next"
            "_and_charged_once[after the charge]",
            "audit:lattice",
        ),
    ),
    Mutant(
        "a refusal comes after the header is read",
        "whether a release can be paid for depends on the file",
        "measure",
        "    with ledger.hold(key), _told_what_fits(query, others, ledger):\n",
        "    check_header(data, query.spec)\n"
        "    with ledger.hold(key), _told_what_fits(query, others, ledger):\n",
        (
            "test_bad_input.py::test_a_release_past_the_budget_is_refused_before_the_data_are_opened",
            "test_release_protocol.py::test_the_same_release_needs_neither_the_data_nor_money",
        ),
    ),
    Mutant(
        "the header is not looked at before the charge",
        "a file without the columns costs a charge",
        "measure",
        "        check_header(data, query.spec, query.compiled.classes)\n",
        "",
        (
            "test_bad_input.py::"
            "test_a_file_without_the_declared_columns_is_refused_before_anything_is_charged",
        ),
    ),
    Mutant(
        "tables too large are found after the charge",
        "a refused release costs a charge",
        "measure",
        "        check_table_sizes(query.subsets, query.compiled.workload.shape_of_domain)\n",
        "",
        (
            "test_bad_input.py::test_tables_too_large_to_count_are_refused_before_anything_is_charged",
        ),
    ),
    Mutant(
        "a release makes the ledger that it does not find",
        "removing the ledger gives the whole budget back",
        "commands.release.release",
        "    with Ledger.open(ledger_place(ledger_path), create=False) as ledger:",
        "    with Ledger.open(ledger_place(ledger_path), create=True) as ledger:",
        ("test_bad_input.py::test_release_never_makes_a_ledger",),
    ),
    Mutant(
        "the cap is not looked at",
        "the budget is not limited",
        "RunningSum.left",
        "self.most - self.spent",
        "self.most",
        ("test_ledger.py::test_ten_tenths_fit_and_one_unit_more_does_not",),
    ),
    Mutant(
        "the cap is passed by one unit",
        "the budget can be passed",
        "RunningSum.left",
        "self.most - self.spent",
        "self.most - self.spent + 1",
        ("test_ledger.py::test_ten_tenths_fit_and_one_unit_more_does_not",),
    ),
    Mutant(
        "a charge may be nothing",
        "noise is drawn for free",
        "check_funds",
        "    if price.units <= 0:",
        "    if price.units < 0:",
        ("test_ledger.py::test_steps_out_of_order_are_programming_errors",),
    ),
    Mutant(
        "a charge is booked in whatever currency the cap has by now",
        "a release is charged twenty times too little",
        "admitted",
        "    check_price(account, price, parent=parent)\n",
        "",
        (
            "test_ledger_races.py::"
            "test_a_charge_worked_out_for_another_cap_than_the_one_on_record_is_refused",
        ),
    ),
    Mutant(
        "the cap is looked at outside the transaction that charges",
        "processes that race pass the cap together",
        "Ledger.reserve",
        "            entry = admitted(state, dataset, key=key, price=price, "
        "ledger=self._store.path)\n            if entry is None:\n",
        "            entry = state.entries.get(key)\n            if entry is None:\n",
        ("test_ledger.py::test_racing_processes_never_pass_the_cap",),
    ),
    Mutant(
        "transactions begin with a read",
        "processes that race pass the cap together, or fail",
        "Store.writing",
        'self._database.execute("BEGIN IMMEDIATE")',
        'self._database.execute("BEGIN DEFERRED")',
        ("test_ledger.py::test_racing_processes_never_pass_the_cap",),
    ),
    Mutant(
        "another release of the same cost is taken for a retry",
        "fresh noise is drawn at no charge",
        "admitted",
        "    entry = state.entries.get(key)\n",
        "    entry = state.entries.get(key) or next(iter(state.entries.values()), None)\n",
        ("test_release_protocol.py::test_another_release_number_draws_fresh_noise_and_pays",),
    ),
    Mutant(
        "a key given up goes on without a look at the cap",
        "the cap is passed by as many runs as are given up",
        "admitted",
        "        check_funds(Funds(account, parent), price)\n        return None",
        "        if entry is None:\n"
        "            check_funds(Funds(account, parent), price)\n"
        "        return None",
        ("test_ledger.py::test_an_abandoned_key_is_charged_anew_only_where_there_is_room",),
    ),
    Mutant(
        "a cap lowered below what is spent has room again",
        "what was passed can be spent once more",
        "RunningSum.left",
        "self.most - self.spent",
        "abs(self.most - self.spent)",
        ("test_ledger.py::test_a_cap_lowered_below_what_is_spent_has_room_for_nothing",),
    ),
    Mutant(
        "a draft is cleared from its first part on",
        "a run that was killed there meets what an earlier one drew",
        "PartialMeasurement.clear",
        "in reversed(list(numbers))",
        "in list(numbers)",
        ("test_adaptive_resumed.py::test_a_draft_that_is_cleared_in_part_has_lost_its_last_parts",),
    ),
    Mutant(
        "a key may change its charge",
        "a dear release goes on as a cheap one",
        "admitted",
        "    if entry.dataset != dataset or entry.units < price.units:",
        "    if entry.dataset != dataset:",
        ("test_ledger.py::test_a_key_is_bound_to_its_dataset_and_charge",),
    ),
    Mutant(
        "runs are begun without end",
        "a run that fails by what it drew can be repeated until it does not",
        "admitted",
        "entry.retries >= RETRIES:",
        "entry.retries >= 10 * RETRIES:",
        ("test_ledger.py::test_a_retry_is_free_three_times_and_then_refused_until_abandoned",),
    ),
    Mutant(
        "a run given up is refunded",
        "noise that was drawn has cost nothing",
        "LedgerState._continue",
        '            entry = replace(entry, state="abandoned")\n',
        '            entry = replace(entry, state="abandoned")\n'
        "            account = self.accounts[entry.dataset]\n"
        "            self.accounts[entry.dataset] = replace(\n"
        "                account, spent=account.spent - entry.units\n"
        "            )\n",
        ("test_ledger.py::test_a_retry_is_free_three_times_and_then_refused_until_abandoned",),
    ),
    Mutant(
        "a run that fails is refunded",
        "noise can be drawn until it pleases",
        "Ledger.hold",
        "            del self._locked[key]\n",
        "            del self._locked[key]\n"
        "            with self._store.writing() as state:\n"
        "                entry = state.entries.get(key)\n"
        '                if entry is not None and entry.state == "reserved":\n'
        '                    self._store.append(state, "abandon", {"key": key})\n',
        (
            "test_adaptive_resumed.py::test_a_run_whose_projection_fails_goes_on_from_its_round_at_no_charge",
        ),
    ),
    Mutant(
        "a committed measurement is drawn again",
        "two draws at the price of one",
        "Ledger.commit",
        '        if entry.state == "committed":\n'
        "            return self._stored(entry)\n"
        "        file",
        "        file",
        ("test_ledger.py::test_steps_out_of_order_are_programming_errors",),
    ),
    Mutant(
        "twins do not wait for each other",
        "which of two draws is kept depends on what was drawn",
        "_try_lock",
        "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        os.fstat(descriptor)\n",
        ("test_ledger.py::test_a_held_key_makes_others_wait_and_then_give_up",),
    ),
    Mutant(
        "a step needs no hold",
        "twins draw twice",
        "Ledger._check_locked",
        "        if key not in self._locked:",
        "        if not key:",
        ("test_ledger.py::test_steps_out_of_order_are_programming_errors",),
    ),
    Mutant(
        "commits are not on disk when they return",
        "a power cut gives budget back",
        "open_store",
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
        ("test_ledger.py::test_the_charge_is_durable_before_the_measurement_exists",),
    ),
    Mutant(
        "a large measurement is not on disk before its event",
        "a power cut leaves a commit without its measurement",
        "MeasurementFile.write_pending",
        "                os.fsync(file.fileno())\n",
        "",
        ("test_ledger_storage.py::test_a_large_file_and_its_name_are_durable_before_the_commit",),
    ),
    Mutant(
        "the name of a large measurement is not on disk before its event",
        "a power cut leaves a commit without its measurement",
        "MeasurementFile.publish",
        "        self._pending.replace(self._final)\n        sync_path(self._folder)\n",
        "        self._pending.replace(self._final)\n",
        ("test_ledger_storage.py::test_a_large_file_and_its_name_are_durable_before_the_commit",),
    ),
    Mutant(
        "what a killed run drew is kept for the next",
        "noise that was seen can be taken up, or left",
        "Ledger.reserve",
        "                self._file(entry).remove()\n                self._store",
        "                self._store",
        (
            "test_ledger_storage.py::test_an_uncommitted_draw_is_removed_when_its_run_is_begun_again",
        ),
    ),
    Mutant(
        "the chain is not verified",
        "a charge can be edited away",
        "read_chain",
        "        sound = expected == Head(seq, stored)",
        "        sound = expected.seq == seq",
        ("test_ledger_tamper.py::test_tampering_is_found_at_the_event",),
    ),
    Mutant(
        "the chain does not cover what went before",
        "an event can be edited where its own hash is too",
        "_next",
        '    covered = f"{previous.hash}\\n{seq}\\n{text}"',
        '    covered = f"{seq}\\n{text}"',
        (
            "test_ledger_tamper.py::"
            "test_an_event_rewritten_with_its_own_hash_breaks_the_chain_after_it",
        ),
    ),
    Mutant(
        "events cut off the end are not missed",
        "the last charges can be taken back",
        "Store.read",
        "        if counted > state.head.seq or not stored <= commits:",
        "        if not stored <= commits:",
        ("test_ledger_tamper.py::test_every_event_taken_out_swapped_doubled_or_put_in_is_found",),
    ),
    Mutant(
        "a measurement without its event is not missed",
        "a release can be made of what the ledger does not count",
        "Store.read",
        "        if counted > state.head.seq or not stored <= commits:",
        "        if counted > state.head.seq:",
        ("test_ledger_tamper.py::test_a_measurement_without_its_event_is_found",),
    ),
    Mutant(
        "events can be deleted",
        "a charge is taken back by one statement",
        "_SCHEMA",
        "CREATE TRIGGER events_stay BEFORE DELETE ON events "
        "BEGIN SELECT RAISE(ABORT, 'append only'); END;\n",
        "",
        ("test_ledger_tamper.py::test_rows_can_only_be_added",),
    ),
    Mutant(
        "measurements can be changed",
        "a release can be bent after the fact",
        "_SCHEMA",
        "CREATE TRIGGER measurements_keep BEFORE UPDATE ON measurements\n"
        "    BEGIN SELECT RAISE(ABORT, 'append only'); END;\n",
        "",
        ("test_ledger_tamper.py::test_rows_can_only_be_added",),
    ),
    Mutant(
        "a stored measurement is not held against its hash",
        "a release can be bent after the fact",
        "Ledger._stored",
        "        if hashlib.sha256(payload).hexdigest() != entry.sha256 or entry.account is None:",
        "        if entry.account is None:",
        ("test_ledger_tamper.py::test_a_changed_or_lost_measurement_is_found",),
    ),
    Mutant(
        "an older copy of the ledger passes for the ledger",
        "restoring a backup gives budget back",
        "missing_event",
        "        if events[named.seq - 1].head == named:",
        "        if events[named.seq - 1]:",
        (
            "test_ledger_witness.py::test_an_older_copy_is_found_by_the_releases_it_has_lost",
            "test_ledger_witness.py::test_two_copies_that_were_both_charged_are_told_by_their_releases",
        ),
    ),
)
