"""Interchangeable codes: what is measured of them, what a record moves, and what is promised."""

from mutation import Mutant

OPTIMUM = "test_orbits.py::test_the_optimum_over_orbits_is_that_over_cells"
PROMISED = "test_orbits.py::test_the_integer_strategy_has_the_error_that_was_promised"
VARIANCES = "test_orbits.py::test_variances_are_those_of_least_squares_row_by_row"
HOSTILE = "test_orbits.py::test_a_hostile_plan_of_orbits_is_refused"
KEYS = "test_orbits.py::test_keys_tell_orbits_and_cores_apart"
AUDITED = "test_orbits.py::test_the_audit_reads_the_same_rows_from_a_plan_of_orbits"
ORBITS = (
    Mutant(
        "a basis over orbits forgets what zero-sum vectors are divided by",
        "estimates are solved in a basis that is not that of the rows",
        "joint_system._merged_basis",
        "vectors / lengths",
        "vectors * lengths",
        ("test_factor_solvers.py::test_a_basis_over_orbits_is_one_over_the_codes",),
    ),
    Mutant(
        "rows over orbits count every code once for its orbit",
        "an error is promised for other rows than are measured",
        "p_identity_loss",
        "Theta * V.sizes if",
        "Theta * 1.0 if",
        ("test_opt_0.py::test_the_loss_over_orbits_is_that_over_codes_and_so_is_its_gradient",),
    ),
    Mutant(
        "codes that are not asked for one by one are taken for those that are",
        "codes are measured alike that questions tell apart",
        "orbits._counted_alike",
        "alone += weight * factor.column_norms(2)",
        "pass",
        ("test_opt_0.py::test_orbits_of_a_structured_gram_are_those_of_its_entries",),
    ),
    Mutant(
        "the norm of a column leaves out the code itself",
        "a record moves the answers further than is charged",
        "OrbitRows.exact_norms",
        "(n - 1) ** power + n - 1",
        "n - 1",
        (PROMISED,),
    ),
    Mutant(
        "the norm of a column is that of its first component",
        "noise is charged for fewer rows than are measured",
        "OrbitRows.exact_norms",
        "norms[part] += ",
        "norms[part] = ",
        (PROMISED,),
    ),
    Mutant(
        "norms of wide cores wrap",
        "a record moves the answers further than is charged",
        "OrbitRows.exact_norms",
        "np.abs(core).astype(object)",
        "np.abs(core)",
        ("test_orbits.py::test_wide_entries_have_exact_norms",),
    ),
    Mutant(
        "codes are compared with the sum of another orbit",
        "the answers are not those of the rows that are charged",
        "OrbitAxis.split",
        "- sums[places]",
        "- sums[::-1][places]",
        ("test_operators.py::test_products_equal_the_matrix",),
    ),
    Mutant(
        "the longest column over orbits is left above one",
        "the loss is promised for shorter columns than are measured",
        "orbits_optimum",
        "np.linalg.cholesky(shared / (1 + FILLED_DIAGONAL))",
        "np.linalg.cholesky(shared)",
        ("test_orbits.py::test_the_longest_column_is_no_longer_than_promised",),
    ),
    Mutant(
        "zero-sum vectors of an orbit count for one",
        "a bound is proven for another workload",
        "opt_orbits._multiplicity",
        "float(axis.sizes[orbit]) - 1",
        "1.0",
        (OPTIMUM, PROMISED),
    ),
    Mutant(
        "deviations within orbits have variance without their size",
        "stated errors are not those of the answers",
        "cells._beside",
        "(queries - means) / axis.sizes[axis.place]",
        "queries - means",
        (VARIANCES,),
    ),
    Mutant(
        "noise on codes within an orbit is not centred",
        "answers have errors that are not stated",
        "cells._recovered",
        "((sums - means) / sizes)[places]",
        "(sums / sizes)[places]",
        ("test_orbits.py::test_noise_in_the_estimates_is_what_is_stated",),
    ),
    Mutant(
        "every question is said to be answered",
        "codes that were not compared are answered from noise alone, or not at all",
        "OrbitsStrategy.supports",
        "b in self.rows.cores for b",
        "True for b",
        (HOSTILE, "test_orbits.py::test_what_was_not_measured_has_no_answer"),
    ),
    Mutant(
        "a plan may number orbits as it likes",
        "two plans of one strategy have different keys",
        "cells._decode_axis",
        "or np.any(np.diff(first) < 0)",
        "",
        (HOSTILE,),
    ),
    Mutant(
        "a plan may hold singular cores",
        "a release is charged for answers that cannot be worked out",
        "OrbitsStrategy.inverses",
        "if not float(np.abs(core @ inverse - np.eye(len(core))).max()) <= ILL_CONDITIONED:",
        "if False:",
        ("test_orbits.py::test_an_ill_conditioned_core_is_refused",),
    ),
    Mutant(
        "the key of a release leaves the orbits out",
        "releases of different rows would share one measurement",
        "release_key._factor",
        'return _tagged("orbits", places, write_series(by_component))',
        'return _tagged("orbits", write_series(by_component))',
        (KEYS,),
    ),
    Mutant(
        "the audit compares codes with those of all orbits",
        "what a record moves is looked at in other rows",
        "dense_strategy._entry",
        "if place[code] == orbit else 0",
        "",
        (AUDITED,),
    ),
    Mutant(
        "a sum over an attribute of one class has the error of a count",
        "errors are stated too small by what a record adds",
        "OrbitsStrategy.power_sums",
        "if i not in self.attributes:",
        "if i > max(self.attributes) + len(self.shape):",
        ("test_expected_error.py::test_power_sums_equal_those_of_the_pseudo_inverse[2-20]",),
    ),
)
