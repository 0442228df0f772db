"""What names a measurement."""

from mutation import Mutant

KEYED = (
    Mutant(
        "the key leaves the release number out",
        "a new release is given the old noise and called fresh",
        "public_digest",
        "        mechanism,\n        release,\n",
        "        mechanism,\n",
        ("test_adaptive_resumed.py::test_every_public_parameter_is_in_the_key",),
    ),
    Mutant(
        "the key leaves the mechanism out",
        "a release at one epsilon is given the noise of another",
        "public_digest",
        "        mechanism,\n        release,\n",
        "        release,\n",
        ("test_adaptive_resumed.py::test_every_public_parameter_is_in_the_key",),
    ),
    Mutant(
        "the key leaves the dataset out",
        "one dataset is given the measurement of another",
        "public_digest",
        "        spec.dataset,\n",
        "",
        ("test_adaptive_resumed.py::test_every_public_parameter_is_in_the_key",),
    ),
    Mutant(
        "the key leaves the classes out",
        "tables of other classes are given this measurement",
        "public_digest",
        '        digest.update(np.ascontiguousarray(classes, dtype="<i8").tobytes() + b";")',
        '        digest.update(b";")',
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the protected unit out",
        "a release for persons is given the noise of one for rows",
        "public_digest",
        "        (spec.privacy.person, spec.privacy.max_rows, spec.privacy.neighbours),\n",
        "",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the strategy's weights out",
        "answers are computed from noisy values of another strategy",
        "add_block",
        "repr((weight, block.attributes, block.terms))",
        "repr((block.attributes, block.terms))",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the measured factors out",
        "answers are computed from noisy values of another strategy",
        "add_block",
        "        digest.update(repr(factor.key).encode())",
        "        digest.update(repr(factor.shape).encode())",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the coding of columns out",
        "a record that means something else is given this measurement",
        "questions._coding",
        "return column.name, kind.values if isinstance(kind, Categorical) else kind, column.other",
        "return column.name, (), column.other",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
)
