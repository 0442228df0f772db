"""Lower bounds are below every strategy and equal the dense SVD bound where they are exact."""

import numpy as np
import pytest
from dense import dense_workload, random_block, random_workload

import dpquery.strategy.bounds as module
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Identity
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.strategy.bounds import svd_bound
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.search.select import select


def dense_svd_bound(workload):
    W, w = dense_workload(workload)
    values = np.linalg.svd(np.sqrt(w)[:, None] * W, compute_uv=False)
    return values.sum() ** 2 / W.shape[1]


@pytest.mark.parametrize("seed", range(25))
def test_bound_equals_the_dense_one(seed):
    workload = random_workload(np.random.default_rng(seed))
    assert svd_bound(gram(workload)).loss == pytest.approx(dense_svd_bound(workload), rel=1e-6)


@pytest.mark.parametrize(
    "workload",
    [
        Workload((3, 1, 4), (product((3, 1, 4), {0: Prefix(3), 2: AllRanges(4)}),), (2.0,)),
        Workload((3, 4), (marginal((3, 4), []),), (1.0,)),
        Workload(
            (3, 2, 4),
            tuple(marginal((3, 2, 4), attributes) for attributes in ([0, 1], [2], [], [0, 2])),
            (1.0, 5.0, 0.1, 1.0),
        ),
        Workload(
            (3, 2, 4),
            (
                Block(
                    (3, 2, 4),
                    (0, 1, 2),
                    (Identity(3), Identity(2), Identity(4)),
                    (True,) * 3,
                    2,
                ),
            ),
            (1.0,),
        ),
    ],
)
def test_closed_forms_never_look_at_the_dense_gram(workload, monkeypatch):
    monkeypatch.setattr(module, "MAX_DECOMPOSED_CELLS", 0)
    assert svd_bound(gram(workload)).loss == pytest.approx(dense_svd_bound(workload), rel=1e-9)


def test_no_bound_is_claimed_where_none_can_be_computed():
    shape = (400, 400)
    blocks = (product(shape, {0: Prefix(400)}), product(shape, {1: Prefix(400)}))
    assert svd_bound(gram(Workload(shape, blocks, (1.0, 1.0)))) is None


def test_a_bound_on_a_hundred_attributes_is_finite():
    shape = (40,) * 100
    blocks = tuple(marginal(shape, [i, i + 1]) for i in range(99))
    bound = svd_bound(gram(Workload(shape, blocks, (1.0,) * 99)))
    assert 1 < bound.loss < sum(block.shape[0] for block in blocks) * 99


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
def test_no_candidate_beats_the_bound(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, 3).tolist())
    blocks = tuple(random_block(rng, shape) for _ in range(3))
    workload = Workload(shape, blocks, (1.0, 3.0, 0.2))
    weight = sum(w * block.shape[0] for w, block in zip(workload.weights, blocks, strict=True))
    for selection in select(workload, noises=["laplace", "gaussian"]).values():
        assert selection.bound.loss >= dense_svd_bound(workload) * (1 - 1e-9)
        for candidate in selection.candidates:
            if candidate.error is not None:
                error = expected_error(candidate.proposal.strategy, workload)
                assert error.weighted_rmse**2 * weight >= selection.bound.loss * (1 - 1e-9)
