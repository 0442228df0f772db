"""Every kind of factor has a tag in a release's key, and all that it is made of is in the key."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from pinned import CLASSES, LAPLACE, PERSON

from dpquery.measurement.release_key import linear_key
from dpquery.operators.cells import BETWEEN, OrbitAxis, OrbitRows, Spread
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.factors import (
    Centered,
    Dense,
    Factor,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    PIdentity,
    Stacked,
    Valued,
    Weighted,
)
from dpquery.operators.p_identity import BlockPIdentity
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.spec.parsing.read import parse
from dpquery.strategy.strategy import WeightedBlock

# And of every kind of factor: what it is made of, and another value of each of that.
FACTORS = {
    Identity: ({"n": 4}, {"n": 5}),
    Ones: ({"m": 1, "n": 4}, {"m": 2, "n": 5}),
    Centered: ({"n": 4}, {"n": 5}),
    Prefix: ({"n": 4, "length": 3}, {"n": 5, "length": 4}),
    AllRanges: ({"n": 4, "length": 3}, {"n": 5, "length": 4}),
    WidthRanges: ({"n": 4, "width": 2}, {"n": 5, "width": 3}),
    ListedRanges: ({"n": 4, "bounds": [(0, 1), (2, 3)]}, {"n": 5, "bounds": [(0, 1), (1, 3)]}),
    Dense: ({"matrix": np.array([[1, 2], [3, 4]])}, {"matrix": np.array([[1, 2, 3, 4]])}),
    PIdentity: (
        {"diagonal": np.array([1, 2]), "rows": np.array([[3, 4]])},
        {"diagonal": np.array([1, 3]), "rows": np.array([[3, 5]])},
    ),
    BlockPIdentity: (
        {
            "diagonal": np.array([1, 2, 3, 4]),
            "inner": np.array([[5, 6, 7, 8]]),
            "outer": np.array([[9, 10]]),
            "size": 2,
        },
        {
            "diagonal": np.array([1, 2, 3, 5]),
            "inner": np.array([[5, 6, 7, 9]]),
            "outer": np.array([[9, 11]]),
            "size": 3,
        },
    ),
    Hierarchy: (
        {"n": 4, "sizes": (1, 2), "weights": (3, 4)},
        {"n": 6, "sizes": (1, 4), "weights": (3, 5)},
    ),
    Tree: (
        {"parents": [np.array([0, 0, 1])], "weights": [np.array([2, 2, 3]), np.array([4, 5])]},
        {"parents": [np.array([0, 1, 1])], "weights": [np.array([2, 2, 4]), np.array([4, 6])]},
    ),
    IdentityRows: (
        {"n": 4, "codes": np.array([0, 2])},
        {"n": 5, "codes": np.array([0, 1])},
    ),
    Groups: (
        {"matrix": sp.csr_array([[1, 1, 0], [0, 0, 1]])},
        {"matrix": sp.csr_array([[1, 0, 0], [0, 1, 1]])},
    ),
    Stacked: (
        {"parts": (Identity(2), Ones(1, 2))},
        {"parts": (Ones(1, 2), Identity(2))},
    ),
    Columns: (
        {"inner": Prefix(4), "codes": np.array([1, 0])},
        {"inner": Hierarchy(4, (1, 2), (1, 1)), "codes": np.array([0, 1])},
    ),
    Valued: (
        {"inner": Prefix(2), "values": np.array([3, -1])},
        {"inner": Identity(2), "values": np.array([3, 1])},
    ),
    Spread: (
        {"inner": Prefix(2), "classes": np.array([0, 0, 1])},
        {"inner": Identity(2), "classes": np.array([0, 1, 1])},
    ),
    OrbitRows: (
        {
            "axes": (OrbitAxis(np.array([0, 0, 1])),),
            "cores": {(BETWEEN,): np.array([[3, -1], [0, 2]]), (0,): np.array([[5]])},
        },
        {
            "axes": (OrbitAxis(np.array([0, 1, 1])),),
            "cores": {(BETWEEN,): np.array([[3, -1], [0, 4]]), (0,): np.array([[5]])},
        },
    ),
}
NEVER_MEASURED = {Weighted}


def concrete(kind):
    """All classes under one that can be made."""
    below = {subclass for direct in kind.__subclasses__() for subclass in concrete(direct)}
    return below if inspect.isabstract(kind) else below | {kind}


def factor_key(factor):
    """The key of a linear release that measures one factor."""
    block = SimpleNamespace(attributes=(0,), terms=((1, (True,)),), factors=(factor,))
    return linear_key(
        parse(PERSON, name="survey.yaml", files={}),
        CompiledSpec(None, CLASSES, ()),
        measured=(WeightedBlock(1, block),),
        mechanism=LAPLACE,
        release=1,
    )


def test_every_kind_of_factor_has_a_tag_and_all_that_it_is_made_of_is_in_the_key():
    assert concrete(Factor) == FACTORS.keys() | NEVER_MEASURED
    keys = []
    for kind, (factor, other) in FACTORS.items():
        assert inspect.signature(kind).parameters.keys() == factor.keys() == other.keys()
        keys += [factor_key(kind(**factor))]
        keys += [factor_key(kind(**factor | {name: other[name]})) for name in factor]
    assert len(set(keys)) == len(keys)


def test_a_factor_that_is_not_of_integers_or_has_no_tag_has_no_key():
    for factor in (Dense(np.eye(2)), Weighted(Identity(2), np.ones(2))):
        with pytest.raises(TypeError, match="key"):
            factor_key(factor)


def test_the_integers_of_a_factor_are_the_same_however_they_are_held():
    matrix = np.array([[1, 2], [3, 4]])
    others = (matrix.astype(np.int32), np.asfortranarray(matrix), matrix.astype(">i8"))
    assert {factor_key(Dense(other)) for other in others} == {factor_key(Dense(matrix))}
