"""What names a measurement."""

from mutation import Mutant

RELEASE_KEY = "measurement/release_key.py"
CANONICAL = "measurement/canonical.py"

KEYED = (
    Mutant(
        "the key leaves the release number out",
        "a new release is given the old noise and called fresh",
        RELEASE_KEY,
        "unit, mechanism, number(release)]",
        "unit, mechanism]",
        ("test_adaptive_resumed.py::test_every_public_parameter_is_in_the_key",),
    ),
    Mutant(
        "the key leaves the mechanism out",
        "a release at one epsilon is given the noise of another",
        RELEASE_KEY,
        "unit, mechanism, number(release)]",
        "unit, number(release)]",
        ("test_adaptive_resumed.py::test_every_public_parameter_is_in_the_key",),
    ),
    Mutant(
        "the key leaves the dataset out",
        "one dataset is given the measurement of another",
        RELEASE_KEY,
        "series([dataset, f",
        "series([f",
        ("test_adaptive_resumed.py::test_every_public_parameter_is_in_the_key",),
    ),
    Mutant(
        "the key leaves the classes out",
        "tables of other classes are given this measurement",
        RELEASE_KEY,
        'yield integer_bytes(classes) + b";"',
        'yield b";"',
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the protected unit out",
        "a release for persons is given the noise of one for rows",
        RELEASE_KEY,
        "unit, mechanism, number(release)]",
        "mechanism, number(release)]",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the strategy's weights out",
        "answers are computed from noisy values of another strategy",
        RELEASE_KEY,
        "series([number(weight), numbers(block.attributes), ",
        "series([numbers(block.attributes), ",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the measured factors out",
        "answers are computed from noisy values of another strategy",
        RELEASE_KEY,
        "(_factor(factor).encode() for factor in block.factors)",
        "(numbers(factor.shape).encode() for factor in block.factors)",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the coding of columns out",
        "a record that means something else is given this measurement",
        RELEASE_KEY,
        "series([text(column.name), kind, truth(column.other)])",
        "series([text(column.name), truth(column.other)])",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "texts in the key end where their writer likes",
        "a request whose names are chosen for it is given the measurement of another",
        CANONICAL,
        "    return str.__repr__(value)",
        "    return f\"'{value}'\"",
        ("test_release_key_fields.py::test_texts_that_look_like_notation_are_texts",),
    ),
    Mutant(
        "numbers in the key are rounded",
        "a release with another scale of noise is given the noise of one that is close",
        CANONICAL,
        "    return repr(float(value))",
        '    return f"{value:.6g}"',
        ("test_release_key_fields.py::test_another_value_of_a_field_is_another_key",),
    ),
    Mutant(
        "a word in the key is another",
        "every release on record is drawn and charged again",
        RELEASE_KEY,
        'record("Integers", low=',
        'record("WholeNumbers", low=',
        ("test_release_key.py::test_a_release_has_the_key_that_it_always_had",),
    ),
)
