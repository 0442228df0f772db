"""Reading values."""

from mutation import Mutant

TWIN = "test_column_codes.py::"
KINDS = "test_codes.py::test_a_number_is_a_number_in_every_kind"
AGREE = "test_codes.py::test_what_one_kind_reads_as_a_number_every_kind_does"
TEXTS = "test_codes.py::test_texts_have_the_documented_codes"
SEVERAL = "test_listed_values.py::test_every_text_of_a_value_is_counted_as_it_and_its_label_is_not"
VALUES = (
    Mutant(
        "1.0 is no 1 where a column holds yes and no",
        "records of one export count and those of another are left out",
        "_position",
        "return lambda text: _listed(text.casefold(), folded, decimal)",
        "return lambda text: folded.get(text.casefold(), _OUTSIDE)",
        (KINDS, AGREE),
    ),
    Mutant(
        "numbers are compared as floats",
        "a value beside an edge of a bin is counted on the other side of it",
        "column_codes._bin",
        "    value = read(text)\n",
        "    value = read(text)\n"
        "    from dpquery.spec.numbers import nearest_float\n"
        "    value = value and of_float(nearest_float(value))\n",
        (TEXTS,),
    ),
    Mutant(
        "a decimal comma separates thousands",
        "1,5 is 15",
        "_pointed",
        'text.replace(decimal, ".")',
        'text.replace(decimal, "")',
        (KINDS,),
    ),
    Mutant(
        "only the first of a value's texts is read",
        "records with its other texts are left out",
        "known_codes",
        "for text in texts:",
        "for text in texts[:1]:",
        (SEVERAL,),
    ),
    Mutant(
        "each text of a value is a value of its own",
        "two texts of one value are counted in two",
        "_named_value",
        'return ListedValue(key.place, TextForm("a label").read(key, problems), texts)',
        "return ListedValue(key.place, key.text, texts[:1])",
        (SEVERAL,),
    ),
    Mutant(
        "two values may be the same number",
        "the second is never counted, and nobody is told",
        "listed_values.categorical",
        "elif same is not None and same[0] != len(kept):",
        "elif same is not None and same[0] > len(kept):",
        ("test_spec_mistakes.py::test_a_mistake_is_named_at_its_place",),
    ),
    Mutant(
        "a text is remembered by how it begins",
        "its code depends on the texts before it: a record moves the counts of others",
        "ColumnCodes._by_rule",
        "self._remembered(text) if",
        "self._remembered(text[:8]) if",
        (f"{TWIN}test_texts_have_the_codes_of_the_rule_whatever_stands_beside_them",),
    ),
    Mutant(
        "a number that is written with an exponent is read without it",
        "1e3 is counted as 1 in a long column and as 1000 in a short one",
        "_written_numbers",
        "    written = texts.filter(plain)\n",
        "    written = pc.replace_substring_regex(texts.filter(plain), '[eE].*', '')\n",
        # Random texts seldom have an exponent that matters.
        (f"{TWIN}test_every_way_to_write_a_number_has_the_code_of_the_rule",),
    ),
    Mutant(
        "a float that is the bound decides",
        "a number that differs from an edge in its twentieth digit is on the other side of it",
        "ColumnCodes._of_numbers",
        "np.where(self._bounds[place] == floats, _UNDECIDED, self._between[place])",
        "self._between[np.searchsorted(self._bounds[:-1], floats, 'right')]",
        (
            f"{TWIN}test_texts_have_the_codes_of_the_rule_whatever_stands_beside_them",
            f"{TWIN}test_every_way_to_write_a_number_has_the_code_of_the_rule",
        ),
    ),
    Mutant(
        "any float that is whole says which number it is",
        "one that ends in .000000000000000000001 is counted as whole",
        "ColumnCodes._of_numbers",
        "exact = inside & short &",
        "exact = inside &",
        (f"{TWIN}test_every_way_to_write_a_number_has_the_code_of_the_rule",),
    ),
    Mutant(
        "floats of 17 digits are told apart",
        "a whole number past 2^53 is counted as the one beside it",
        "column_codes._FLOAT_DIGITS",
        "15",
        "17",
        (f"{TWIN}test_every_way_to_write_a_number_has_the_code_of_the_rule",),
    ),
    Mutant(
        "numbers are rounded to single floats",
        "a value beside the edge of a bin is counted on the other side of it",
        "_written_numbers",
        ".cast(pa.float64()).to_numpy()",
        ".cast(pa.float32()).to_numpy()",
        (
            f"{TWIN}test_every_way_to_write_a_number_has_the_code_of_the_rule",
            f"{TWIN}test_rounding_to_a_float_never_turns_the_order_of_two_numbers_round",
        ),
    ),
    Mutant(
        "a point is a decimal mark where a comma is",
        "1.5 is a number in a long column and none in a short one",
        "_written_numbers",
        "_NUMBERS[decimal]",
        "_NUMBERS[decimal].replace('[,]', '[,.]')",
        (f"{TWIN}test_every_way_to_write_a_number_has_the_code_of_the_rule",),
    ),
    Mutant(
        "a text that ends in a blank is no declared one",
        "records are counted as other where their column has many texts",
        "column_codes._WORD",
        "(?:.*[!-~])?$",
        "(?:.*)?$",
        (f"{TWIN}test_every_way_to_write_a_number_has_the_code_of_the_rule",),
    ),
    Mutant(
        "any hour is set to midnight",
        "a time that there is not is counted where a column has many times",
        "calendar._TIMES",
        "[01][0-9]|2[0-3]",
        "[0-2][0-9]",
        (f"{TWIN}test_midnight_is_of_the_same_day",),
    ),
    Mutant(
        "the days of times before 1970 are cut towards it",
        "an evening of 1969 is counted on the next day",
        "local_days",
        "local // _OF_A_DAY",
        "local / _OF_A_DAY",
        (f"{TWIN}test_times_that_no_calendar_has_are_outside",),
    ),
    Mutant(
        "single floats are taken for the doubles that they are stored as",
        "0.1 of a narrow column is above the edge 0.1 by its last digit",
        "doubles",
        'else numbers.astype("U32")',
        "else numbers",
        ("test_typed_sources.py::test_a_typed_value_is_the_text_of_a_csv_field",),
    ),
    Mutant(
        "the key does not hold the other texts of a value",
        "a release under other texts is answered by what was counted before",
        "release_key._column",
        "case Categorical(values=values, also=()):",
        "case Categorical(values=values, labels=_):",
        ("test_release_key_fields.py::test_another_value_of_a_field_is_another_key",),
    ),
    Mutant(
        "a year has 52 weeks",
        "the days of week 53 are counted in the first week of the next year",
        "period_number",
        "return (day.toordinal() - 1) // 7",
        "return day.isocalendar().year * 52 + day.isocalendar().week",
        ("test_dates.py::test_periods_are_those_of_pandas",),
    ),
    Mutant(
        "a period that is cut holds all of its days",
        "days that the spec leaves out are counted",
        "column_codes._period",
        "kind.first <= day <= kind.last",
        "kind.start(0) <= day <= kind.end(kind.length - 1)",
        ("test_dates.py::test_a_day_has_the_code_of_its_period_and_days_outside_have_none",),
    ),
    Mutant(
        "codes stand beside rows that are no single value",
        "a table joined on codes has rows that count others too",
        "_column_values",
        "np.where(queries.first == queries.last, queries.first, NO_RANGE)",
        "np.where(queries.first >= 0, queries.first, NO_RANGE)",
        ("test_release_rows.py::test_labels_agree_with_a_row_by_row_twin",),
    ),
)
