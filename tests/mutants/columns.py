"""Columns beside the estimates: what is nearest, what is believed, what it is said to err by."""

from mutation import Mutant

GUESS = "test_shrunk.py::test_guesses_err_far_less_than_estimates_and_by_what_is_expected"
NEAREST = (
    "test_agreeing_tables.py::test_a_table_with_both_margins_is_the_nearest_in_standard_errors"
)

COLUMNS = (
    Mutant(
        "cells cut at zero add to the number of records",
        "consistent tables invent people",
        "shrinkage.FIXED",
        "FIXED = 1e6",
        "FIXED = 1.0",
        (NEAREST,),
    ),
    Mutant(
        "all of a component's excess is taken for signal",
        "guesses are as noisy as estimates",
        "shrinkage._belief",
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
        "shrinkage.component_noise",
        "beyond -= part",
        "beyond -= 0 * part",
        ("test_shrunk.py::test_the_noise_of_a_component_is_that_of_its_dense_projection",),
    ),
    Mutant(
        "all components weigh the same in consistent tables",
        "what is measured well moves as far as what is not",
        "shrinkage.unshrunk_components",
        "{sizes: 1 / each for",
        "{sizes: 1 / each**0 for",
        (NEAREST,),
    ),
    Mutant(
        "tables over attributes with ranges are fitted too",
        "consistent sums of ranges err far more than their estimates",
        "AgreeingTables.__init__",
        "if factor.shape[1] > 2 and not _white(factor)",
        "if factor.shape[1] > 99 and not _white(factor)",
        (
            "test_agreeing_tables.py::"
            "test_attributes_that_are_asked_for_ranges_are_left_out_with_the_reason",
        ),
    ),
    Mutant(
        "cells are rounded one by one",
        "whole numbers do not add up to the number of records",
        "agreeing_tables.whole_cells",
        "return np.asarray(rounded.reshape(cells.shape))",
        "return np.asarray(np.rint(cells).astype(np.int64))",
        ("test_agreeing_tables.py::test_whole_cells_keep_totals_along_the_first_axes",),
    ),
)
