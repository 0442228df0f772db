"""Reading values."""

from mutation import Mutant

KINDS = "test_codes.py::test_a_number_is_a_number_in_every_kind"
AGREE = "test_codes.py::test_what_one_kind_reads_as_a_number_every_kind_does"
TEXTS = "test_codes.py::test_texts_have_the_documented_codes"
SEVERAL = "test_listed_values.py::test_every_text_of_a_value_is_counted_as_it_and_its_label_is_not"
VALUES = (
    Mutant(
        "1.0 is no 1 where a column holds yes and no",
        "records of one export count and those of another are left out",
        "_position",
        "return lambda text: _listed(text.casefold(), known, decimal)",
        "return lambda text: known.get(text.casefold(), _OUTSIDE)",
        (KINDS, AGREE),
    ),
    Mutant(
        "numbers are compared as floats",
        "a value beside an edge of a bin is counted on the other side of it",
        "value_codes._bin",
        "    value = number(text, decimal)\n",
        "    value = number(text, decimal)\n"
        "    value = value and of_float(float(text.replace(decimal, '.')))\n",
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
        "_known",
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
        "value_codes.coder",
        "coded = (remembered(t) if",
        "coded = (remembered(t[:8]) if",
        ("test_codes.py::test_the_code_of_a_text_depends_on_the_text_alone",),
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
        "value_codes._period",
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
