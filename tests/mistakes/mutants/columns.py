"""Columns beside the estimates: what is nearest, what is believed, what it is said to err by."""

from mutation import Mutant

GUESS = "test_shrunk.py::test_guesses_err_far_less_than_estimates_and_by_what_is_expected"
NEAREST = "test_agreeing_tables.py::test_components_beyond_joint_classes_are_the_nearest_too"
JOINT = "test_agreeing_tables.py::test_one_joint_table_is_the_nearest_by_the_true_covariances"
WHOLE = (
    "test_agreeing_tables.py::"
    "test_whole_cells_keep_the_sums_of_runs_and_come_near_those_across_lines"
)

COLUMNS = (
    Mutant(
        "measurements of a table count alike however noisy",
        "a careful measurement is drowned by a rough one",
        "misfit.merged_tables",
        "precision = math.fsum(1 / table.variance for table in tables)",
        "precision = len(tables) / tables[0].variance",
        ("test_table_fits.py::test_measurements_of_a_table_are_merged_by_precision",),
    ),
    Mutant(
        "sums of a measured table are as precise as its cells",
        "wide tables drown the one-way tables",
        "MeasuredTable.margin",
        "self.variance * summed",
        "self.variance",
        (
            "test_table_fits.py::test_a_margin_has_the_noise_of_the_cells_that_it_adds_up",
            "test_table_fits.py::test_merged_components_are_those_of_dense_weighted_least_squares",
        ),
    ),
    Mutant(
        "whole tables weigh alike however noisy",
        "rows follow the noise of rough tables",
        "WholeTables.add_blocks",
        "weight = (least / std) ** 2",
        "weight = 1.0",
        (
            "test_table_fits.py::"
            "test_the_error_weighs_every_table_by_its_precision_and_its_gradient_is_its_slope",
        ),
    ),
    Mutant(
        "rows start at even classes",
        "what no table measured together is no longer independent of its shape",
        "fits._independent_rows",
        "rows = spread * shares[:, None]",
        "rows = spread",
        ("test_table_fits.py::test_rows_start_at_the_one_way_tables",),
    ),
    Mutant(
        "cells cut at zero add to the number of records",
        "consistent tables invent people",
        "components.FIXED",
        "FIXED = 1e6",
        "FIXED = 1.0",
        (NEAREST,),
    ),
    Mutant(
        "all of a component's excess is taken for signal",
        "guesses are as noisy as estimates",
        "components._belief",
        "np.maximum(_norms(excess) - noise * freedom, 0.0)",
        "np.maximum(_norms(excess), 0.0)",
        ("test_shrunk.py::test_noise_around_independent_attributes_is_not_believed",),
    ),
    Mutant(
        "the noise of the estimates is added to the expected error",
        "the manifest says that guesses err by more than they do",
        "ShrunkTables.expected_rmse",
        "total -= self._noise_std**2",
        "total += self._noise_std**2",
        (GUESS,),
    ),
    Mutant(
        "the noise of smaller components is left in that of larger ones",
        "components are weighed as if they were noisier",
        "components.component_noise",
        "beyond -= part",
        "beyond -= 0 * part",
        ("test_shrunk.py::test_the_noise_of_a_component_is_that_of_its_dense_projection",),
    ),
    Mutant(
        "components of single attributes move as others do",
        "cells cut at zero push records into margins that are known well",
        "components.unshrunk_components",
        "FIXED if len(sizes) < 2",
        "FIXED if len(sizes) < 1",
        (NEAREST,),
    ),
    Mutant(
        "the noise of attributes with ranges is taken for white",
        "consistent sums of ranges err far more than their estimates",
        "_TablesApart.__init__",
        "if factor.shape[1] > 2 and not _white(factor)",
        "if factor.shape[1] > 99 and not _white(factor)",
        (
            "test_agreeing_tables.py::"
            "test_attributes_of_too_many_classes_for_their_noise_are_left_out_with_the_reason",
        ),
    ),
    Mutant(
        "cells are rounded one by one",
        "whole numbers do not add up to the number of records",
        "nearest.whole_cells",
        "return np.ascontiguousarray(back)",
        "return np.rint(cells).astype(np.int64)",
        (WHOLE,),
    ),
    Mutant(
        "all lines are rounded at one point",
        "whole numbers of a thousand lines of 0.4 are a thousand zeros",
        "nearest._split",
        "(0.5 + GOLDEN * np.arange(len(sums))) % 1",
        "0.5 + 0 * np.arange(len(sums))",
        (WHOLE,),
    ),
    Mutant(
        "groups of a hierarchy are rounded in the order of their codes",
        "whole numbers of areas that are not neighbours in the file are far off their totals",
        "nearest.order_of_codes",
        "return np.lexsort((np.arange(codes), *reversed(groupings)))",
        "return np.lexsort((np.arange(codes),))",
        (
            "test_agreeing_tables.py::"
            "test_groups_that_are_not_neighbours_keep_their_sums_in_whole_numbers",
        ),
    ),
    Mutant(
        "joint counts are fitted without single attributes first",
        "cells cut at zero push records into margins that are known well",
        "JointCounts._single_counts",
        "for i in self.attributes if len(self.attributes) > 1 else ():",
        "for i in ():",
        (JOINT,),
    ),
    Mutant(
        "measured rows weigh the same in joint counts",
        "what is measured well moves as far as what is not",
        "MeasuredMargins.gram",
        "rows.weight**2 * product",
        "1.0 * product",
        (JOINT,),
    ),
    Mutant(
        "tables of one release are fitted each by itself",
        "the same people have two different numbers in two tables",
        "AgreeingTables.alone",
        "return block in self._lone",
        "return True",
        (
            "test_extra_columns.py::"
            "test_ranges_that_overlap_and_cells_beside_them_are_sums_of_one_table",
        ),
    ),
    Mutant(
        "columns are rehearsed without noise",
        "what would err least on data that are known is chosen",
        "runs.rehearse_columns",
        "+ _noise(rng, stage, rows.block.queries)",
        "+ 0 * _noise(rng, stage, rows.block.queries)",
        ("test_closest.py::test_the_noise_has_the_size_that_is_planned[gaussian]",),
    ),
    Mutant(
        "Laplace noise is rehearsed at its scale in place of its standard deviation",
        "columns are compared at more noise than there is",
        "runs._noise",
        "stage.noise_std / math.sqrt(2)",
        "stage.noise_std",
        ("test_closest.py::test_the_noise_has_the_size_that_is_planned[laplace]",),
    ),
    Mutant(
        "the sparse variant spends more on large tables",
        "guesses from it err more than those of the best strategy",
        "residual.sparse_variant",
        "SPARSE_FACTOR ** (-len(b) / 2)",
        "SPARSE_FACTOR ** (len(b) / 2)",
        (
            "test_closest.py::"
            "test_the_sparse_variant_takes_three_times_the_noise_for_each_attribute",
        ),
    ),
    Mutant(
        "the answers that err most are chosen",
        "readers have the worst of what was compared",
        "ColumnRehearsal._plan",
        "chosen = min(",
        "chosen = max(",
        ("test_closest.py::test_the_closest_answers_are_a_column_of_the_release",),
    ),
    Mutant(
        "a release leaves the closest answers out",
        "the plan promises a column that no file has",
        "choose.with_closest",
        'column is None or column == "estimate" or column in known',
        "column is not None",
        ("test_closest.py::test_the_closest_answers_are_a_column_of_the_release",),
    ),
    Mutant(
        "the populations are one and the same",
        "what errs least on one made-up population is taken for sure",
        "populations.sample_prior",
        "population.draw(",
        "POPULATIONS[0].draw(",
        ("test_closest.py::test_the_populations_differ_and_are_always_the_same",),
    ),
)
