"""Relaxed adaptive projection."""

from mutation import Mutant

BRUTE = "test_disjoint.py::test_the_bound_holds_for_every_neighbour_by_brute_force"
RAP = (
    Mutant(
        "selection is paid for one query a round",
        "all further queries of a round are chosen for free",
        "sharpest_rate",
        "    square = 8 * rho / (draws * span**2) * (1 << 2 * _RATE_BITS)",
        "    square = 8 * rho / (span**2) * (1 << 2 * _RATE_BITS)",
        (
            "test_adaptive_costs.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",
        ),
    ),
    Mutant(
        "selection is twice as sharp as it is paid for",
        "choosing queries costs four times its share",
        "sharpest_rate",
        "    square = 8 * rho / ",
        "    square = 32 * rho / ",
        (
            "test_adaptive_costs.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",
            "audit:rap",
        ),
    ),
    Mutant(
        "two-sided selection is paid for as one-sided",
        "choosing queries costs four times its share where records are replaced",
        "rap_budget",
        "    span = records * (2 if replace else 1)\n",
        "    span = records\n",
        (
            "test_adaptive_costs.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",
        ),
    ),
    Mutant(
        "queries are drawn on one side where records are replaced",
        "counts move both ways there, and choosing costs four times its share",
        "RapBudget.sides",
        "        if self.replace:\n",
        "        if self.replace and not size:\n",
        (
            "test_adaptive_costs.py::test_a_quarter_is_drawn_among_counts_too_high_where_that_is_sharper",
        ),
    ),
    Mutant(
        "selection and measurement each spend the whole round",
        "a run costs more than it is charged",
        "rap_budget",
        "        measurement_rho=round_rho - selection_rho,\n",
        "        measurement_rho=round_rho,\n",
        (
            "test_adaptive_costs.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",
        ),
    ),
    Mutant(
        "the rounds share what the total has spent",
        "a run costs more than it is charged",
        "rap_budget",
        "guarantee.amount * (1 - share) / settings.rounds",
        "guarantee.amount / settings.rounds",
        (
            "test_adaptive_costs.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",
        ),
    ),
    Mutant(
        "the total is measured without noise",
        "the exact number of records is published",
        "noisy_total",
        "    return chance.add_noise(\n        np.array([counted << GRID_BITS]),\n"
        "        budget=mechanism.budget(mechanism.total_rho),\n"
        "        sensitivity=mechanism.total_sensitivity,\n"
        "        scale=mechanism.total_scale,\n    )\n",
        "    return np.array([counted << GRID_BITS])\n",
        (
            "test_adaptive_rounds.py::test_nothing_but_noisy_values_reaches_the_projection_the_ledger_or_the_screen",
            "audit:rap",
        ),
    ),
    Mutant(
        "the noisy total is taken alone, whatever was declared",
        "where the noise is wider than the dataset, answers add up to anything from 1",
        "weighed_total",
        "    return max(1.0, (rows.count / doubt + counted / noise) / (1 / doubt + 1 / noise))\n",
        "    return max(1.0, counted)\n",
        (
            "test_adaptive_rounds.py::"
            "test_a_clear_total_is_kept_and_without_a_signal_it_is_the_declared_one",
            "test_rap_commands.py::"
            "test_without_a_signal_answers_add_up_to_about_the_declared_number",
            "audit:rap",
        ),
    ),
    Mutant(
        "the total's noise hides one row of a person",
        "a person of several rows shows in the total",
        "RapBudget.total_sensitivity",
        "        return self.records**2 << 2 * GRID_BITS",
        "        return 1 << 2 * GRID_BITS",
        ("test_adaptive_costs.py::test_a_person_pays_for_all_rows",),
    ),
    Mutant(
        "a declared number of rows is the total where rows are added or removed",
        "the exact number of records, which is private there, is published",
        "declared_total",
        ' and privacy.neighbours == "replace"',
        "",
        (
            "test_adaptive_costs.py::"
            "test_a_total_is_measured_unless_records_are_replaced_and_their_number_is_declared",
        ),
    ),
    Mutant(
        "a record replaced moves one count of a family",
        "the count that it moves to is not paid for",
        "squared_move",
        "min(size, 2 if replace else 1)",
        "min(size, 1)",
        (BRUTE,),
    ),
    Mutant(
        "a person's rows count once in a round",
        "a person of several rows is protected as one row is",
        "squared_move",
        "    return records**2 * sum(",
        "    return records * sum(",
        (BRUTE,),
    ),
    Mutant(
        "queries that share records pass for disjoint",
        "a record moves more counts than are paid for",
        "family_sizes",
        "(clashes[k, :k] > slack[k] + slack[:k])",
        "(clashes[k, :k] >= slack[k] + slack[:k])",
        (BRUTE,),
    ),
    Mutant(
        "queries that share a code pass for disjoint",
        "a record moves more counts than are paid for",
        "_clashes",
        "        apart = matrix @ matrix.T == 0\n",
        "        apart = matrix @ matrix.T < matrix.sum(axis=1)\n",
        (BRUTE,),
    ),
    Mutant(
        "a query joins a family of which it is disjoint with one",
        "a record moves more counts than are paid for",
        "family_sizes",
        "np.flatnonzero(disjoint_members == np.array(sizes))",
        "np.flatnonzero(disjoint_members > 0)",
        (BRUTE,),
    ),
    Mutant(
        "all queries at once are priced as one replaced record moves one cell",
        "the count that a record moves to is not paid for",
        "_joint",
        "    return min(2 * answered, workload.shape[0]) if replace else answered",
        "    return answered",
        ("test_disjoint.py::test_the_bound_for_all_queries_at_once_holds_for_every_neighbour",),
    ),
    Mutant(
        "rounds that were measured are drawn again",
        "a run that fails by what it drew can be repeated until it does not",
        "RapQuery.noisy",
        "            done=measured.rounds,\n",
        "            done=(),\n",
        (
            "test_adaptive_resumed.py::"
            "test_a_run_whose_projection_fails_goes_on_from_its_round_at_no_charge",
        ),
    ),
    Mutant(
        "the total is drawn again by a run that goes on",
        "two totals at the price of one",
        "RapQuery.noisy",
        "        if not parts:\n",
        "        if not parts[1:]:\n",
        (
            "test_adaptive_resumed.py::test_a_run_that_fails_four_times_is_given_up_and_leaves_no_parts",
        ),
    ),
    Mutant(
        "a round is durable only at the end of the run",
        "a run that fails by what it drew can be repeated until it does not",
        "RapQuery.noisy",
        "            draft.append(parts[-1])\n",
        "",
        (
            "test_adaptive_resumed.py::"
            "test_a_run_whose_projection_fails_goes_on_from_its_round_at_no_charge",
        ),
    ),
    Mutant(
        "the public side is told true counts",
        "everything that is fitted to them tells of the data",
        "queries._measured",
        "    return Round(places, noisy / STEPS, scale / STEPS)",
        "    return Round(places, exact / 1.0, scale / STEPS)",
        ("test_adaptive_rounds.py::test_the_noise_of_a_round_is_as_wide_as_it_is_said_to_be",),
    ),
    Mutant(
        "the noise of a round is for one of its queries",
        "all further queries of a round are measured for free",
        "queries._measured",
        "    exact = _answered(answers, places)\n"
        "    move = mechanism.sensitivity(workload, places)\n",
        "    exact = _answered(answers, places)\n"
        "    move = mechanism.sensitivity(workload, places[:1])\n",
        (
            "test_adaptive_rounds.py::test_every_round_is_drawn_at_the_scale_of_all_its_queries",
            "audit:rap",
        ),
    ),
    Mutant(
        "selection is seeded",
        "which query was chosen for its error can be worked out",
        "ExactChance.level",
        "        random, u, bits = SlowSampler(self.entropy), 0, 0\n",
        '        random, u, bits = SlowSampler(lambda size: b"\\x55" * size), 0, 0\n',
        (
            "test_selection.py::"
            "test_selections_follow_the_law_of_one_exponential_mechanism_after_another",
        ),
    ),
    Mutant(
        "the worst query is taken without chance",
        "selection has no privacy at all",
        "selection.select_queries",
        "            level = chance.level(scores, members, rate)\n",
        "            level = max(k for k, inside in enumerate(members) if inside)\n",
        (
            "test_selection.py::"
            "test_selections_follow_the_law_of_one_exponential_mechanism_after_another",
        ),
    ),
    Mutant(
        "one side's scores move both ways",
        "choosing queries costs four times its share",
        "scores_of",
        'np.maximum(differences if side == "under" else -differences, 0)',
        "np.abs(differences)",
        ("test_selection.py::test_draws_on_two_sides_follow_the_scores_of_each_and_never_meet",),
    ),
    Mutant(
        "scores are rounded up in the enclosure of a weight",
        "the leading bits decide for a level that the law does not have there",
        "selection._weight",
        "    return max(0, int(scaled) - 1)",
        "    return max(0, int(scaled) + 1)",
        ("test_selection.py::test_the_enclosure_of_a_weight_holds_its_exponential",),
    ),
    Mutant(
        "a draw that is open is closed by a guess",
        "the law is off at every bound",
        "_decided",
        "    if chosen and highs[chosen - 1] << bits > u * lows[-1]:\n        return None\n",
        "",
        ("test_selection.py::test_a_draw_that_its_first_bits_leave_open_goes_on_with_more",),
    ),
    Mutant(
        "a draw is half as sharp again as its rate",
        "the queries chosen tell twice what they are charged",
        "ExactChance.level",
        "            level = _decided(u, bits, scores, members, rate)\n",
        "            level = _decided(u, bits, scores, members, rate * 3 / 2)\n",
        (
            "audit:rap",
            "test_selection.py::"
            "test_selections_follow_the_law_of_one_exponential_mechanism_after_another",
        ),
    ),
    Mutant(
        "queries of earlier rounds are selected again",
        "a run asks what its law has no room for",
        "_left",
        "    struck[taken[taken[:, 0] == block, 1]] = _TAKEN\n",
        "    struck[taken[:0, 1]] = _TAKEN\n",
        ("test_selection.py::test_queries_of_earlier_rounds_are_never_selected_again",),
    ),
    Mutant(
        "selection hides one row of a person",
        "the queries chosen tell of a person's other rows",
        "rap_budget",
        "    span = records * (2 if replace else 1)\n",
        "    span = 2 if replace else 1\n",
        (
            "test_adaptive_costs.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",
        ),
    ),
    Mutant(
        "queries with entries of -1 pass for counts",
        "a record more moves some scores up and others down, at the price of one way",
        "counts_records",
        "    return whole and int(",
        "    return bool(whole) or int(",
        ("test_adaptive_costs.py::test_queries_that_are_no_counts_are_refused_as_what_they_are",),
    ),
    Mutant(
        "half of the queries are drawn among counts too high, under the same tag",
        "a run that was begun by one rule goes on by another",
        "OVER",
        "OVER = 4\n",
        "OVER = 2\n",
        (
            "test_adaptive_resumed.py::test_what_a_run_asks_or_commits_changes_only_with_the_tag_in_its_key",
        ),
    ),
    Mutant(
        "the seal of a part does not name its file",
        "a part of another run is taken for one of this",
        "PartialMeasurement._sealing",
        '        named = f"{file.name} {len(values)} ".encode()\n',
        '        named = f"{len(values)} ".encode()\n',
        ("test_adaptive_resumed.py::test_a_part_of_another_run_or_of_another_place_is_refused",),
    ),
)
