"""Cores of single blocks: common null vectors, what is promised and what is measured."""

from mutation import Mutant

PROMISED = (
    "test_block_cores.py::"
    "test_blocks_with_cores_of_their_own_err_as_is_said_and_less_than_common_ones"
)
OTHER = "test_block_cores.py::test_a_core_with_another_null_vector_is_refused"
WHOLE = "test_block_cores.py::test_whole_cores_have_the_null_vector_exactly_and_the_traces_nearly"
SIMULATED = "test_block_cores.py::test_simulated_errors_are_those_predicted"
BLOCK_CORES = (
    Mutant(
        "cores of one attribute may have different null vectors",
        "closed forms hold no longer, and errors are larger than is said",
        "DenseCore.is_null",
        "== 0 for row in rows",
        "< math.inf for row in rows",
        (OTHER,),
    ),
    Mutant(
        "a variance takes the common core for that of the block",
        "an error is promised for other rows than are measured",
        "ResidualStrategy.power_sums",
        "order, within)",
        "order)",
        (PROMISED, SIMULATED),
    ),
    Mutant(
        "whole numbers of a core are not combinations beside its null vector",
        "blocks are no longer independent",
        "_Axis.whole",
        "whole[:, 1:] -= K",
        "whole[:, 1:] += K",
        (WHOLE,),
    ),
)
