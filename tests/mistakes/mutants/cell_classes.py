"""Cells that count as one: their classes, their counts, and what a record moves."""

from mutation import Mutant

CLASSES = "test_cell_classes.py::test_classes_are_the_distinct_columns_of_the_workload"
TOTALS = "test_cell_classes.py::test_queries_and_gram_over_classes_are_those_over_cells"
APART = "test_cell_classes.py::test_measurements_over_different_classes_have_no_common_columns"
CELL_CLASSES = (
    Mutant(
        "every question has the same numbers in a signature",
        "cells that different questions count become one class",
        "cells.cell_classes",
        "_signatures(block, attributes, salt=place)",
        "_signatures(block, attributes, salt=0)",
        ("test_cell_classes.py::test_cells_that_one_question_each_counts_are_not_one_class",),
    ),
    Mutant(
        "classes are numbered by their signatures",
        "the counts of classes are told in another order than they are asked for",
        "cells.cell_classes",
        "rank[which.reshape(-1)]",
        "which.reshape(-1)",
        (CLASSES,),
    ),
    Mutant(
        "the first cell of a class is counted for all",
        "the records of a class's other cells are lost",
        "CellClasses.totals",
        "np.add.reduceat(table.reshape(-1)[order], starts)",
        "table.reshape(-1)[order][starts]",
        (TOTALS,),
    ),
    Mutant(
        "a later question may tell cells of a class apart",
        "the answer for one cell of a class is given for all",
        "CellClasses.by_class",
        "if not self._same_within(block):",
        "if False:",
        ("test_cell_classes.py::test_a_question_that_tells_cells_of_a_class_apart_is_refused",),
    ),
    Mutant(
        "measurements over other classes are compared",
        "columns of different cells are taken for one record's",
        "column_matrices",
        "if len(kinds) > 1:",
        "if False:",
        (APART,),
    ),
    Mutant(
        "the key of a release leaves the classes of cells out",
        "releases of different classes would share one measurement",
        "release_key._queries",
        "        yield _tagged(",
        "        _tagged(",
        ("test_cell_classes.py::test_releases_of_different_classes_have_different_keys",),
    ),
    Mutant(
        "a threshold over classes counts one hit too few",
        "records that meet one predicate less than asked for are counted",
        "CellClasses._columns",
        "block.at_least if not block.is_product",
        "block.at_least - 1 if not block.is_product",
        (TOTALS,),
    ),
    Mutant(
        "the longest column of classes is left above one",
        "the loss is promised for shorter columns than are measured",
        "cells_optimum",
        "np.linalg.cholesky(X / (1 + FILLED_DIAGONAL))",
        "np.linalg.cholesky(X)",
        (
            "test_cell_classes.py::"
            "test_the_optimum_is_within_its_gap_of_its_bound_and_no_strategy_is_below_it",
        ),
    ),
    Mutant(
        "the audit takes all cells for one class",
        "what a record moves is not looked at cell by cell",
        "DenseRows._place",
        "self.class_of[cell]",
        "(0,)",
        ("test_replacement.py::test_the_audit_finds_the_same_distance_by_itself",),
    ),
)
