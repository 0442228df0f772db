"""What is published was solved: the checks against strategies that floats cannot solve."""

from mutation import Mutant

SOLVED = (
    Mutant(
        "all measurements are tried with the same noise",
        "the spread of answers is judged by errors that go together",
        "Probes.noise",
        "public_generator(seed + k)",
        "public_generator(seed)",
        ("test_solution_check.py::test_values_that_are_not_kept_come_again_the_same",),
    ),
    Mutant(
        "what was solved is not held against what was asked",
        "a query of a union is answered with coefficients that are not its own",
        "_check_residual",
        "    if not float(np.abs(product - expected).max(initial=0.0)) <= SOLVED_RESIDUAL * scale:",
        "    if scale < 0:",
        ("test_solution_check.py::test_a_triangle_that_cannot_be_solved_is_no_solution",),
    ),
    Mutant(
        "the lengths of a basis are not looked at",
        "a factor that has lost its rank in floats is solved with others",
        "_check_positive",
        "    if not float(lengths.min()) > SHORTEST_LENGTH * float(lengths.max()):",
        "    if not lengths.size:",
        ("test_solution_check.py::test_a_factor_without_full_rank_in_floats_is_refused",),
    ),
    Mutant(
        "an inverse is not held against its Gram",
        "answers are computed with an inverse that is none",
        "inverse_gram",
        "    if not float(np.abs(back - probes).max()) <= INVERSE_RESIDUAL:",
        "    if not probes.size:",
        ("test_solution_check.py::test_a_factor_without_full_rank_in_floats_is_refused",),
    ),
    Mutant(
        "a part of a union is a million times too small",
        "answers are biased towards the parts that kept their scale",
        "_stacks",
        "        for k, weight in enumerate(weights)\n    ]\n    tables",
        "        for k, weight in enumerate([1e-6 * weights[0], *weights[1:]])\n    ]\n    tables",
        ("test_solution_check.py::test_answers_that_are_off_are_seen",),
    ),
    Mutant(
        "a union's rows are solved in single precision",
        "slices of three conditions are answered with errors that are not printed",
        "joint_system._stacks",
        "            Q, R = np.linalg.qr(S)\n",
        "            Q, R = np.linalg.qr(S.astype(np.float32))\n",
        ("test_fuzz_answers.py::test_three_conditions_on_one_item_are_answered_as_printed",),
    ),
    Mutant(
        "a predicate that always holds has a remainder",
        "rounding, times the noise of a table that is hardly measured, is stated as an error",
        "DenseSplit.variances",
        "np.where(always, 0.0, np.maximum(queries.quadratic(self.remainder), 0.0))",
        "np.maximum(queries.quadratic(self.remainder), 0.0)",
        ("test_solution_check.py::test_a_predicate_that_always_holds_has_no_remainder",),
    ),
    Mutant(
        "answers to exact counts are not looked at",
        "a strategy that floats cannot solve is planned and published",
        "_Check.of_exact_answers",
        "        if worst <= MAX_BIAS:",
        "        if worst <= math.inf:",
        ("test_solution_check.py::test_answers_that_are_off_are_seen",),
    ),
    Mutant(
        "the spread of the answers is not looked at",
        "standard errors that are a quarter of the truth are published",
        "_Check.of_noise",
        "if not abs(s.misprint - 1) <= MISPRINT]",
        "if s.misprint < 0]",
        ("test_solution_check.py::test_standard_errors_that_are_misprinted_are_seen[1.6]",),
    ),
    Mutant(
        "noise that answers do not show is not looked at",
        "a strategy is planned whose answers vary by other than its formulas",
        "_Sample.unlikely_mean",
        ">= chance / 2:",
        ">= 0:",
        ("test_solution_check.py::test_noise_that_is_not_what_is_stated_is_seen",),
    ),
    Mutant(
        "release does not try the plan's strategy",
        "a plan that an older version made is carried out, charged and published",
        "check_solution",
        "    if flaw:",
        "    if not strategy:",
        (
            "test_solution_check.py::"
            "test_a_release_of_a_flawed_strategy_is_refused_and_nothing_is_charged",
        ),
    ),
    Mutant(
        "a noise that a larger release takes is not searched for",
        "a release of the whole budget has a strategy that nobody looked for",
        "Rivals.__call__",
        "max(LEAD / ratios[0], 1 / min(ratios))",
        "LEAD / ratios[0]",
        ("test_rivals.py::test_noise_that_a_release_of_the_whole_budget_takes_is_searched_for",),
    ),
    Mutant(
        "a noise that is less far behind than searches gain is not searched for",
        "a plan has the worse noise, for want of a search",
        "Rivals.__call__",
        "max(LEAD / ratios[0], 1 / min(ratios))",
        "1 / min(ratios)",
        (
            "test_rivals.py::"
            "test_the_share_of_a_score_is_by_the_errors_that_release_compares[gdp-0.9]",
        ),
    ),
    Mutant(
        "a noise that may be taken is not searched for",
        "a plan has the worse noise, for want of a search",
        "_Search._within",
        "if share >= 1:",
        "if share > 1:",
        ("test_rivals.py::test_where_either_may_be_taken_nothing_is_left_out",),
    ),
    Mutant(
        "the trace of an eliminated block has each pair of other blocks once",
        "a bound that is no bound is called proven",
        "Eliminated.add_trace",
        "times = tau if a == b else 2 * tau",
        "times = tau",
        (
            "test_dual_bounds.py::"
            "test_the_bound_and_its_masses_at_any_v_are_those_of_the_dense_root[0-workload20]",
        ),
    ),
    Mutant(
        "plan does not try its best candidate",
        "a strategy is planned that no release carries out",
        "select._sound",
        "        if not flaw:",
        "        if flaw is not None:",
        ("test_solution_check.py::test_a_flawed_candidate_gives_way_to_the_next_and_says_why",),
    ),
)
