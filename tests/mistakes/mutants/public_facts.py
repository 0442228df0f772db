"""Public facts and fixed shares: what they state, what answers make of them, what is said."""

from mutation import Mutant

_LEAST = "test_public_facts.py::test_errors_are_those_of_least_squares_under_the_facts"
_VARY = "test_public_facts.py::test_estimates_vary_as_their_covariances_and_are_exact_in_the_facts"
_ROWS = "test_public_facts.py::test_impossible_queries_are_those_that_count_no_possible_cell"
_SAID = "test_facts_release.py::test_the_files_say_what_was_relied_on"
_LEFT_OUT = "test_public_facts.py::test_a_contradicted_fact_is_left_out_and_the_others_stay"
_FORCED = "test_facts_release.py::test_what_the_noisy_answers_contradict_is_said_and_not_forced"

PUBLIC_FACTS = (
    Mutant(
        "a query that touches an impossible cell is taken to be impossible",
        "possible records are published as 0",
        "ImpossibleCells._all_of",
        "table.reshape(sizes) == 0",
        "table.reshape(sizes) < self.possible.size // 2",
        (_ROWS,),
    ),
    Mutant(
        "an r-of-k query is impossible where one of its conjunctions is",
        "possible records are published as 0",
        "ImpossibleCells.rows",
        "out &= self._all_of",
        "out[:] = self._all_of",
        ("test_public_facts.py::test_an_r_of_k_query_is_impossible_where_all_its_ways_are",),
    ),
    Mutant(
        "what a fact says of variances is counted once too little",
        "plan and release promise smaller errors than answers have",
        "InformedStrategy.power_sums",
        "after[rows.places] -= np.einsum",
        "after[rows.places] -= 1.1 * np.einsum",
        (_LEAST,),
    ),
    Mutant(
        "answers are moved away from the facts",
        "estimates err twice as much as they should",
        "_InformedEstimates.answer",
        "answers[rows.places] += self.surprise",
        "answers[rows.places] -= self.surprise",
        (_VARY,),
    ),
    Mutant(
        "covariances do not know the facts",
        "errors of sums of answers, shares and differences are wrong",
        "InformedStrategy.covariances",
        "self.inner.covariances(pairs) - pairs.crossed",
        "self.inner.covariances(pairs) - 0 * pairs.crossed",
        (_VARY,),
    ),
    Mutant(
        "known answers are published as estimated",
        "totals that everybody knows are printed with noise and no error",
        "InformedStrategy.state",
        "answers[:] = known.values",
        "answers[:] = answers",
        (_VARY,),
    ),
    Mutant(
        "a fact that noisy answers contradict is forced on them",
        "a wrong total moves every answer, and nobody is told",
        "tested_facts",
        "not worst.contradicted",
        "True",
        (_LEFT_OUT, _FORCED),
    ),
    Mutant(
        "the test of facts forgets the noise of a measured row",
        "true facts are left out, or false ones relied on",
        "checks._tests",
        "(discrepancies(strategy, estimates) / noise_std) ** 2",
        "(discrepancies(strategy, estimates) / noise_std / 3) ** 2",
        ("test_public_facts.py::test_simulated_releases_err_as_predicted_and_are_covered",),
    ),
    Mutant(
        "Laplace noise is held against the law of Gaussian noise",
        "true facts are left out once in a thousand releases",
        "_chance",
        'laplace_squares if noise == "laplace" else chdtrc',
        "chdtrc",
        ("test_public_facts.py::test_a_laplace_value_far_out_is_no_contradiction",),
    ),
    Mutant(
        "the statement does not say that known totals are unprotected",
        "readers believe that what is published exactly was protected",
        "facts_lines",
        "if fact.file:",
        "if not fact.file:",
        (_SAID,),
    ),
    Mutant(
        "totals that contradict each other are taken as they come",
        "whichever comes first is exact, and the others are not what the file says",
        "check_facts",
        "mistakes = mistakes or [*_sums_at_odds(spec, compiled, facts)]",
        "mistakes = mistakes or []",
        (
            "test_facts_release.py::"
            "test_totals_that_contradict_one_another_are_refused_with_their_lines",
        ),
    ),
    Mutant(
        "a part may be above its whole",
        "differences of known totals are below zero",
        "_parts_above_wholes",
        "known.values[:, None] > above.values",
        "known.values[:, None] > 2 * above.values",
        (
            "test_facts_release.py::"
            "test_totals_that_contradict_one_another_are_refused_with_their_lines",
        ),
    ),
    Mutant(
        "a row of a file of totals may be there twice",
        "which total holds is decided by the order of lines",
        "read_row_values",
        "if line_of[place]:",
        "if False:",
        ("test_facts_release.py::test_a_file_of_totals_is_refused_at_its_line",),
    ),
    Mutant(
        "plan prints errors without the facts",
        "planned errors are not those of the release, which is then refused",
        "public_facts._given_facts",
        "informed(candidate.proposal.strategy, compiled.facts, workload)",
        "informed(candidate.proposal.strategy, None, workload)",
        ("test_facts_release.py::test_columns_that_know_no_facts_are_refused",),
    ),
    Mutant(
        "a share of Gaussian noise is of the sensitivity, not of its square",
        "an item with a tenth of the budget has a hundredth",
        "shares._selection",
        "[math.sqrt(share) for share in shares]",
        "[share for share in shares]",
        ("test_fixed_shares.py::test_every_part_has_its_share_of_what_is_charged",),
    ),
    Mutant(
        "items without a share have all of the budget beside the others",
        "items with a share have less than theirs",
        "share_groups",
        "1 - sum((share for _, share in groups), Fraction(0))",
        "Fraction(1)",
        ("test_fixed_shares.py::test_groups_are_the_items_with_shares_and_all_others",),
    ),
)
