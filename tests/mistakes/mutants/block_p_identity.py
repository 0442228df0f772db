"""p-Identities of blocks: what a record changes, what names them, and what their answers err by."""

from mutation import Mutant

BLOCK_P_IDENTITY = (
    Mutant(
        "rows over blocks are left out of the length of a column",
        "a record changes the answers by more than the noise is made for",
        "BlockPIdentity.column_norms",
        "np.abs(self.diagonal) ** power + below + self._spread(over))",
        "np.abs(self.diagonal) ** power + below)",
        ("test_operators.py::test_summaries_equal_the_matrix",),
    ),
    Mutant(
        "rows over blocks are left out where entries are wide",
        "a record changes wide answers by more than the noise is made for",
        "factor_norms",
        "[d**power + x + outer[j // factor.size] for",
        "[d**power + x for",
        ("test_sensitivity.py::test_entries_that_would_wrap_64_bits_are_summed_exactly",),
    ),
    Mutant(
        "signs of rows over blocks are not looked at",
        "a replaced record changes the answers by more than the noise is made for",
        "replacement._overlaps",
        "positive = bool((inner >= 0).all() and (outer >= 0).all())",
        "positive = bool((inner >= 0).all())",
        ("test_replacement.py::test_blocks_too_long_to_list_with_opposite_signs_are_far_apart",),
    ),
    Mutant(
        "the key leaves the size of blocks out",
        "answers are computed from noisy values of other blocks",
        "release_key._factor",
        '_tagged("block-p-identity", shape, write_number(size), *parts)',
        '_tagged("block-p-identity", shape, *parts)',
        (
            "test_release_key_factors.py::test_every_kind_of_factor_has_a_tag_and_all_that_it_is_made_of_is_in_the_key",
        ),
    ),
    Mutant(
        "the inverse forgets the rows over blocks",
        "answers are stated with the errors of blocks that are measured alone",
        "BlockInverse._of_some_ranges",
        "return np.asarray(total - (over**2).sum(axis=0))",
        "return np.asarray(total)",
        ("test_block_p_identity.py::test_the_inverse_of_blocks_equals_the_dense_one",),
    ),
    Mutant(
        "a block's counts are not corrected by the rows over it",
        "answers are published that are not those of least squares",
        "BlockPIdentity.recover",
        "return np.asarray(counts + inverse.shares[:, None] * self._spread(gain))",
        "return np.asarray(counts)",
        ("test_factor_solvers.py::test_every_factor_is_solved_by_least_squares",),
    ),
    Mutant(
        "a plan may measure a code by nothing of its own",
        "a hostile plan with a code that cannot be told from others is carried out",
        "_block_p_identity",
        "    if np.any(diagonal < 1):",
        "    if np.any(diagonal < 0):",
        ("test_block_p_identity.py::test_a_plan_of_blocks_is_read_back_or_refused",),
    ),
)
