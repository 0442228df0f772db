"""How far records that are replaced move the answers."""

from mutation import Mutant

EXACT = (
    "test_replacement.py::"
    "test_the_distance_of_two_columns_is_exact_and_for_laplace_noise_never_too_small"
)
REPLACEMENT = (
    Mutant(
        "overlaps are added to distances",
        "columns of opposite signs are taken to be near each other",
        "replacement._distance",
        "first + second - 2 * overlap, dtype",
        "first + second + 2 * overlap, dtype",
        (EXACT,),
    ),
    Mutant(
        "overlaps are taken off once",
        "a record that moves is protected as if columns shared less",
        "replacement._distance",
        "first + second - 2 * overlap * both, dtype",
        "first + second - 4 * overlap * both, dtype",
        (EXACT,),
    ),
    Mutant(
        "the root of two whatever the signs of the columns",
        "columns that point away from each other are further apart",
        "sensitivity",
        "    distance = Distances(_power(noise)).largest(columns, norms)\n",
        "    distance = 2 * _largest_norm(columns, noise)\n",
        ("test_replacement.py::test_columns_of_opposite_signs_cost_twice_their_length",),
    ),
    Mutant(
        "a record that may be dropped is always inside",
        "the record that is dropped moves its whole column",
        "record_change",
        "any(column.drops for column in columns)",
        "False",
        ("test_replacement.py::test_rows_leave_where_a_column_drops_them_and_persons_always",),
    ),
    Mutant(
        "a replaced person has as many rows as the other one",
        "the rows that only one of them has enter and leave",
        "record_change",
        "spec.privacy.person is not None or ",
        "",
        ("test_replacement.py::test_rows_leave_where_a_column_drops_them_and_persons_always",),
    ),
    Mutant(
        "columns of zeros are forgotten",
        "a record that leaves the domain moves its whole column",
        "sensitivity",
        'if change == "moves within" and distance:',
        "if distance:",
        ("test_replacement.py::test_a_record_that_may_leave_moves_more_than_any_that_stays",),
    ),
    Mutant(
        "the block that moves least stands for all",
        "the other blocks are free where pairs cannot be searched",
        "Distances.largest",
        "apart = sum(self.bounds(measurements, norms))",
        "apart = min(self.bounds(measurements, norms))",
        (EXACT,),
    ),
    Mutant(
        "no overlap is below zero",
        "signed columns are further apart than is paid for where pairs cannot be searched",
        "Distances._bound",
        "least, most = min(ends), max(ends)",
        "least, most = max(0, *ends[:1]), max(ends)",
        ("test_replacement.py::test_beyond_the_search_every_block_takes_its_own_bound",),
    ),
    Mutant(
        "the rows of a replaced person are forgotten",
        "a person of several rows is protected as one row is",
        "steps",
        "return privacy.max_rows * (",
        "return (1 if replaced else privacy.max_rows) * (",
        ("test_replacement.py::test_no_person_of_several_rows_moves_the_answers_further",),
    ),
    Mutant(
        "a plan is believed on what its records do",
        "a plan changed by hand draws less noise than its spec needs",
        "sound_change",
        'planned not in ("enters", record_change(spec))',
        "False",
        ("test_replacement.py::test_a_plan_that_claims_what_its_spec_forbids_is_refused",),
    ),
    Mutant(
        "flooring moves the rows of one column alone",
        "two columns have twice as many rows that may move by a step more",
        "column_support",
        "return min(2 * total, ",
        "return min(total, ",
        ("test_replacement.py::test_rows_that_two_columns_touch_are_all_counted_on_the_grid",),
    ),
    Mutant(
        "a bound for records that enter is printed for records that stay",
        "a strategy is called optimal, or impossible, by a bound of other neighbours",
        "lower_bound",
        'if change == "enters":',
        'if change != "moves":',
        (
            "test_moves_bound.py::"
            "test_records_that_never_leave_are_bound_apart_from_those_that_enter",
        ),
    ),
    Mutant(
        "only equal codes are compared in pairs",
        "a record that moves to another code costs nothing",
        "Distances._kinds",
        "between = [] if n == 1 else",
        "between = [] if n else",
        (EXACT, "test_replacement.py::test_cells_cost_the_root_of_two_and_no_more"),
    ),
    Mutant(
        "a bound for records that move leaves out what the mean cell takes",
        "a strategy is called further from the optimum than it is, or a bound is passed",
        "moved_bound",
        " - math.sqrt(largest) * (1 + SAFETY)",
        "",
        ("test_moves_bound.py::test_a_bound_for_records_that_enter_gives_one_for_those_that_move",),
    ),
)
