"""Adaptive measurement of whole tables."""

from mutation import Mutant

FAILING_FIT = (
    "test_table_resumed.py::test_a_run_whose_fit_fails_goes_on_from_its_tables_at_no_charge"
)
ADAPTIVE = (
    Mutant(
        "a table is drawn twice as sharply as it is paid for",
        "choosing tables costs four times its share",
        "AdaptiveBudget.round",
        "sharpest_rate(selection, 1, self.score_span)",
        "sharpest_rate(4 * selection, 1, self.score_span)",
        (
            "test_table_rounds.py::test_the_noise_of_every_part_costs_its_share_and_no_more",
            "audit:adaptive",
        ),
    ),
    Mutant(
        "scores are taken to move one way",
        "choosing tables costs four times its share",
        "AdaptiveBudget.score_span",
        "        return 2 * moved * max",
        "        return moved * max",
        ("test_table_draws.py::test_no_neighbour_moves_a_draw_by_more_than_is_paid_for",),
    ),
    Mutant(
        "the weights of tables are no part of how far their scores move",
        "choosing tables costs a million times its share",
        "AdaptiveBudget.score_span",
        " * max(self.candidates.weights)",
        "",
        ("test_table_draws.py::test_no_neighbour_moves_a_draw_by_more_than_is_paid_for",),
    ),
    Mutant(
        "a score moves by one record of a person",
        "a person of several rows shows in what is chosen",
        "AdaptiveBudget.score_span",
        "self.records * (2 if",
        "(2 if",
        ("test_table_draws.py::test_no_neighbour_moves_a_draw_by_more_than_is_paid_for",),
    ),
    Mutant(
        "a record replaced moves a score as one added does",
        "choosing tables costs four times its share where records are replaced",
        "AdaptiveBudget.score_span",
        " * (2 if self.replace else 1)",
        "",
        ("test_table_draws.py::test_no_neighbour_moves_a_draw_by_more_than_is_paid_for",),
    ),
    Mutant(
        "a record replaced moves one cell of a table",
        "the cell that it moves to is not paid for",
        "AdaptiveBudget.squared_sensitivity",
        " * (2 if self.replace else 1)",
        "",
        ("test_table_rounds.py::test_no_neighbour_moves_a_table_by_more_than_is_paid_for",),
    ),
    Mutant(
        "the noise on tables hides one row of a person",
        "a person of several rows shows in every table",
        "AdaptiveBudget.squared_sensitivity",
        "self.records**2 * (2 if",
        "(2 if",
        ("test_table_rounds.py::test_no_neighbour_moves_a_table_by_more_than_is_paid_for",),
    ),
    Mutant(
        "the tables of one attribute are measured with the noise of one",
        "each of them is paid for once, and all of them are measured",
        "AdaptiveBudget.one_way_scale",
        "tables=self.candidates.one_way",
        "tables=1",
        ("test_table_rounds.py::test_the_noise_of_every_part_costs_its_share_and_no_more",),
    ),
    Mutant(
        "the tables of one attribute are not charged",
        "the rounds spend what they have spent already",
        "AdaptiveBudget.rounds_rho",
        " - self.one_way_rho",
        "",
        (
            "test_table_rounds.py::test_the_parts_of_every_run_are_its_guarantee_to_the_last_fraction",
            "audit:adaptive",
        ),
    ),
    Mutant(
        "the last round spends its cost beside what is left",
        "a run costs more than it is charged",
        "AdaptiveBudget.round",
        "rho = left if last else rho",
        "rho = left + rho if last else rho",
        (
            "test_table_rounds.py::test_the_parts_of_every_run_are_its_guarantee_to_the_last_fraction",
        ),
    ),
    Mutant(
        "the draw of a table is free",
        "a round spends a tenth more than it is charged",
        "AdaptiveBudget.round",
        "scale=self._scale(rho - selection, tables=1)",
        "scale=self._scale(rho, tables=1)",
        ("test_table_rounds.py::test_the_noise_of_every_part_costs_its_share_and_no_more",),
    ),
    Mutant(
        "the penalty of a table follows from its true counts",
        "what noise is expected to hide depends on the records",
        "draw_table",
        "weight * (moved - penalty)",
        "weight * (moved - penalty * (int(tables(0).sum()) > 9))",
        ("test_table_draws.py::test_a_table_is_drawn_as_often_as_its_weight_says",),
    ),
    Mutant(
        "one table of a score is drawn, always the first",
        "the law of the draw is not what is paid for",
        "draw_table",
        "drawn[chance.below(len(drawn))]",
        "drawn[0]",
        ("test_table_draws.py::test_tables_of_one_score_are_drawn_together_and_then_one_of_them",),
    ),
    Mutant(
        "the level rises by how far the true table is from the model",
        "what a round costs depends on the records",
        "run_tables",
        "np.abs(fit.table(attributes) - before).sum()",
        "np.abs(tables(this_round.number) - before.ravel()).sum()",
        (
            "test_table_rounds.py::test_the_level_rises_where_a_table_moved_the_model_by_no_more_than_its_noise",
        ),
    ),
    Mutant(
        "a resumed run decides on the levels of its earlier rounds anew",
        "another machine may spend more than was charged",
        "run_tables",
        "level = this_round.level + (",
        "level = level + (",
        (
            "test_table_resumed.py::test_the_levels_of_earlier_rounds_are_taken_from_what_was_committed",
        ),
    ),
    Mutant(
        "a measured table is not durable before the fit sees it",
        "a run that fails on what it drew draws again",
        "AdaptiveQuery.noisy",
        "            parts.append(encoded_round(this_round))\n"
        "            draft.append(parts[-1])\n",
        "            parts.append(encoded_round(this_round))\n",
        (FAILING_FIT,),
    ),
    Mutant(
        "the first tables are not durable before the fit sees them",
        "a run that fails on what it drew draws again",
        "AdaptiveQuery.noisy",
        "            draft.append(parts[0])\n",
        "",
        (FAILING_FIT,),
    ),
    Mutant(
        "a round of any level is read",
        "a damaged part has a round cost what it did not",
        "decoded_run",
        "if now not in ({level, level + 1} if rounds else {0}):",
        "if now < 0:",
        (
            "test_table_resumed.py::test_parts_that_no_run_could_have_are_refused_draw_nothing_and_can_be_given_up",
        ),
    ),
    Mutant(
        "values of an unfinished run are read as a release's",
        "a run ends before its rho is spent, by what it drew",
        "measured_tables",
        "    if not measured.finished:\n",
        "    if not measured.rounds:\n",
        (
            "test_table_resumed.py::test_committed_values_that_do_not_spend_the_charge_exactly_are_refused",
        ),
    ),
    Mutant(
        "the weights of tables are not in the key",
        "runs of two laws are one release",
        "_adaptive_mechanism",
        "        weights=write_numbers(candidates.weights),\n",
        "",
        (
            "test_table_resumed.py::test_every_public_parameter_is_in_the_key",
            "test_release_key.py::test_a_release_has_the_key_that_it_always_had",
        ),
    ),
    Mutant(
        "a component's noise is taken to be that of one cell",
        "standard errors beside adaptive answers are too small, and are believed",
        "UnbiasedAnswers.__init__",
        "1 / (math.sqrt(noise[sizes][place]) * math.prod(sizes))",
        "1 / math.sqrt(noise[sizes][place])",
        ("test_unbiased_answers.py::test_answers_and_errors_are_those_of_dense_least_squares",),
    ),
    Mutant(
        "a number of records that is public counts as measured",
        "answers beside the fit miss the total that everybody knows",
        "AdaptiveMechanism.unbiased",
        "UnbiasedAnswers(shape, tables, budget.total)",
        "UnbiasedAnswers(shape, tables, None)",
        ("test_unbiased_answers.py::test_a_declared_number_of_records_has_no_error",),
    ),
    Mutant(
        "later questions are answered by classes that were not measured",
        "an answer is called unbiased that guesses how values share a class",
        "RelaxedAnswers._is_measured",
        "not refined and ",
        "",
        ("test_unbiased_answers.py::test_questions_that_tell_more_values_apart_have_none",),
    ),
    Mutant(
        "tables that are compared together share their distances",
        "a table is drawn for how far another one is from the model",
        "distances",
        "[0, *ends[:-1]]",
        "[0] * len(ends)",
        (
            "test_table_draws.py::"
            "test_distances_are_the_same_however_many_tables_are_compared_at_once",
        ),
    ),
)
