"""Parts side by side: what each measures, over which classes, and with which share."""

from mutation import Mutant

SAME_ROWS = "test_parts.py::test_the_audit_reads_the_same_rows_from_a_plan_of_parts"
COARSER = "test_parts.py::test_parts_are_planned_over_the_codes_that_they_tell_apart"
VARIANCES = "test_parts.py::test_the_stated_variances_are_those_of_noise_in_the_estimates"
BACK = "test_parts.py::test_parts_come_back_from_a_plan_and_hostile_ones_do_not"
SPREAD = "test_parts.py::test_a_spread_factor_is_its_dense_twin"
PARTS = (
    Mutant(
        "a part of a union is measured without its weight",
        "noise is charged for other rows than are measured",
        "UnionStrategy.measurements",
        "WeightedBlock(weight * rows.weight, rows.block)",
        "WeightedBlock(rows.weight, rows.block)",
        (SAME_ROWS,),
    ),
    Mutant(
        "only the first rows of each part are measured",
        "answers are made of rows that nobody measured",
        "UnionStrategy.measurements",
        "for rows in part.measurements",
        "for rows in part.measurements[:1]",
        (COARSER,),
    ),
    Mutant(
        "the variance of a part is divided by its weight once",
        "stated errors are not those of the answers",
        "UnionStrategy.power_sums",
        "1 / self.weights[k] ** order",
        "1 / self.weights[k]",
        (VARIANCES,),
    ),
    Mutant(
        "codes of classes have the norm of the first class",
        "a record whose column is longer moves the answers further than is charged",
        "factor_norms",
        "[norms[code] for code in factor.classes.tolist()]",
        "[norms[0] for code in factor.classes.tolist()]",
        ("test_parts.py::test_a_spread_factor_with_wide_entries_has_the_norms_of_its_columns",),
    ),
    Mutant(
        "codes of one class overlap as the first code does",
        "a record that moves between classes moves the answers further than is charged",
        "replacement._of_classes",
        "matrix=matrix[np.ix_(factor.classes, factor.classes)]",
        "matrix=matrix[np.ix_(0 * factor.classes, 0 * factor.classes)]",
        ("test_parts.py::test_replaced_records_move_parts_no_further_than_is_charged",),
    ),
    Mutant(
        "a spread factor counts one code of each class",
        "the records of a class's other codes are lost",
        "Spread._summed",
        "np.asarray(self._members @ X)",
        "np.asarray(X[np.unique(self.classes, return_index=True)[1]])",
        (SPREAD,),
    ),
    Mutant(
        "unions may hold unions without end",
        "a plan from outside is read deeper than any plan is written",
        "UnionStrategy.decode",
        "if any(isinstance(part, UnionStrategy) for parts_of in inner for part in parts_of):",
        "if False:",
        (BACK,),
    ),
    Mutant(
        "a later question may tell codes of a class apart",
        "the answer for one code of a class is given for all",
        "CoarserStrategy.over_classes",
        "if not np.array_equal(apart[first][codes], apart):",
        "if False:",
        ("test_parts.py::test_a_question_that_tells_codes_of_a_class_apart_has_no_answer",),
    ),
    Mutant(
        "the key of a release leaves the classes of codes out",
        "releases of different classes would share one measurement",
        "release_key._factor",
        'return _tagged("merged", _factor(inner), write_integers(classes))',
        "return _factor(inner)",
        (
            "test_release_key_factors.py::"
            "test_every_kind_of_factor_has_a_tag_and_all_that_it_is_made_of_is_in_the_key",
        ),
    ),
    Mutant(
        "parts are not planned",
        "a plan may be worse than its items alone",
        "_Search.searched",
        "for name, build in table:\n",
        "for name, build in [row for row in table if row[0] != 'Parts']:\n",
        ("test_parts.py::test_a_plan_of_two_levels_is_better_than_all_but_its_parts",),
    ),
    Mutant(
        "rows that meet a threshold are counted in 64 bits",
        "plan ends in an error for parts with wide weights",
        "ColumnNorms.at",
        "np.asarray(rows, dtype=object)",
        "np.asarray(rows)",
        (
            "test_sensitivity.py::"
            "test_a_threshold_beside_a_condition_may_have_a_weight_past_64_bits",
        ),
    ),
)
