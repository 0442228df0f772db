"""Trees of nested groups: what is measured, how it is solved, and how far one record moves it."""

from mutation import Mutant

TWIN = "test_trees.py::test_a_tree_is_its_dense_twin"
INVERSE = "test_trees.py::test_the_inverse_of_a_tree_answers_every_kind_of_query"
ROWS = "test_trees.py::test_the_audit_reads_the_rows_of_a_tree_from_a_plan"
HOSTILE = "test_trees.py::test_hostile_trees_are_refused"
IMPOSSIBLE = "test_trees.py::test_impossible_trees_are_refused"
ROUNDED = "test_trees.py::test_rounded_weights_cost_next_to_nothing_and_never_more_than_the_budget"
TREES = (
    Mutant(
        "a code has the norm of its own weight alone",
        "noise is charged for less than one record moves",
        "Tree.column_norms",
        "for weights in self.weights]",
        "for weights in (self.weights[0], *(0 * level for level in self.weights[1:]))]",
        (TWIN, ROWS),
    ),
    Mutant(
        "wide weights are added up in 64 bits",
        "the norms of hostile weights wrap, and the noise is far too small",
        "Tree.exact_norms",
        "weights.astype(object) ** power",
        "weights.astype(np.int64) ** power",
        ("test_trees.py::test_wide_weights_have_the_norms_of_their_paths",),
    ),
    Mutant(
        "blocks are measured with the weight of their level's first",
        "answers are made of rows that nobody measured",
        "Tree.matmat",
        "weights[measured, None] * sums[measured]",
        "weights[measured[:1], None] * sums[measured]",
        (TWIN,),
    ),
    Mutant(
        "codes are summed up in their own order, not in that of their blocks",
        "a county's count is that of the tracts of another",
        "Tree.matmat",
        "sums if level > 1 or self.order is None else sums[self.order]",
        "sums",
        (TWIN,),
    ),
    Mutant(
        "noisy sums of the codes are solved in the order of their blocks",
        "estimates of one tract are given out as those of another",
        "Tree.recover",
        "totals[0] = totals[0][self.order]",
        "totals[0] = totals[0][:]",
        (TWIN,),
    ),
    Mutant(
        "a tree of crossing parents is accepted from a plan",
        "rows are summed over other codes than their columns are charged for",
        "trees._check",
        "level and np.any(np.diff(above) < 0)",
        "level and np.any(np.diff(above) > np.inf)",
        (IMPOSSIBLE,),
    ),
    Mutant(
        "a code without a weight is accepted",
        "its count has no answer, and division by its weight gives anything at all",
        "trees._check",
        "weights[0].size == 0 or weights[0].min() <= 0",
        "weights[0].size == 0",
        (IMPOSSIBLE,),
    ),
    Mutant(
        "a tree over fewer codes is read from a plan",
        "the codes beyond it are not charged for",
        "decode_factor",
        "factor.shape[1] != n:",
        "factor.shape[1] > n:",
        (HOSTILE,),
    ),
    Mutant(
        "two codes of a tree overlap by the weights of all blocks of one",
        "a record that moves is charged for less than it moves",
        "replacement._of_tree",
        "(place[:, None] == place).astype(object) * values[place]",
        "(place[:, None] >= 0).astype(object) * values[place]",
        (
            "test_trees.py::test_a_record_that_moves_between_codes_moves_a_tree_no_further_than_is_charged",
        ),
    ),
    Mutant(
        "all codes of a long tree overlap by the weight of a code",
        "a record that moves is charged for less than it moves",
        "replacement._of_tree",
        "int(top[0]) ** power if len(top) == 1 else 0",
        "int(factor.weights[0][0]) ** power",
        ("test_trees.py::test_a_tree_of_many_codes_overlaps_at_least_by_its_highest_block",),
    ),
    Mutant(
        "a key of a release leaves out the weights of a tree",
        "a release with other weights is taken for the same, and its noise is used again",
        "release_key._factor",
        "for level in (parents, weights))",
        "for level in (parents, parents))",
        (
            "test_release_key_factors.py::test_every_kind_of_factor_has_a_tag_and_all_that_it_is_made_of_is_in_the_key",
        ),
    ),
    Mutant(
        "children that are not asked for have no mass",
        "stated errors are smaller than those of the answers",
        "TreeInverse._of_rows",
        "total += np.bincount(row, beside * mean**2, minlength=m)",
        "total += 0 * np.bincount(row, beside * mean**2, minlength=m)",
        (INVERSE,),
    ),
    Mutant(
        "the variances of blocks leave out those above them",
        "stated errors are smaller than those of the answers",
        "TreeInverse.variances",
        "apart + share**2 * variances[-1][self.parents[level]]",
        "apart + 0 * share**2 * variances[-1][self.parents[level]]",
        (INVERSE,),
    ),
    Mutant(
        "rounding a code's weight does not make up for the blocks above it",
        "a record moves the answers further than the budget that the weights were chosen for",
        "strategy._integer_tree",
        "column_norms(power) - 1)",
        "column_norms(power) * 0)",
        (ROUNDED,),
    ),
    Mutant(
        "sets that cross are taken for nested ones",
        "the loss that decides between strategies, and its bound, are those of another workload",
        "opt_tree._family",
        "if np.any(above != place):",
        "if np.all(above != place):",
        ("test_trees.py::test_the_sets_of_a_gram_are_found_in_any_order",),
    ),
    Mutant(
        "the bound of a tree counts a code once for all of its kind",
        "a bound that does not hold says that a strategy is optimal",
        "opt_tree._dual_bound",
        "float(count @ root) ** 2",
        "float(count @ root) ** 2 / float(v.sum())",
        ("test_trees.py::test_under_gaussian_noise_trees_are_as_good_as_any_rows",),
    ),
    Mutant(
        "products that differ on two attributes are bound as one product",
        "a bound that does not hold says that a strategy is optimal",
        "opt_product._Descent._bound",
        "axis=0)) > 1",
        "axis=0)) > 9",
        ("test_trees.py::test_products_that_differ_on_two_attributes_have_no_product_bound",),
    ),
)
