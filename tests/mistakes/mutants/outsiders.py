"""What outsiders found, made again: new budgets in silence, old numbers, ids, zones, low signal."""

from mutation import Mutant

OUTSIDERS = (
    Mutant(
        "an id of a letter more or less is another one",
        "a typo in a dataset's id is a new budget, in silence",
        "caps._alike",
        "return _within(first, second, edits=(longest >= 3) + (longest >= 8))",
        "return False",
        ("test_once.py::test_an_id_like_one_on_record_is_refused",),
    ),
    Mutant(
        "changed data are not looked for",
        "old numbers are handed out for changed data, with exit code 0",
        "_stale",
        "if stale.changed and not same:",
        "if stale.changed and same:",
        ("test_once.py::test_numbers_of_changed_data_are_not_given_out_as_new",),
    ),
    Mutant(
        "spellings of one number are several persons",
        "a person in two files with ids of two types adds more rows than the unit allows",
        "person_names",
        "if not odd.true_count:",
        "if odd.true_count >= 0:",
        ("test_ids.py::test_an_id_in_one_file_of_whole_numbers_and_one_of_floats_is_one_person",),
    ),
    Mutant(
        "times with a zone count on the days of UTC",
        "the same frame has other counts in Parquet than in CSV",
        "_local_seconds",
        "return pc.local_timestamp(in_zone).cast(pa.int64()).to_numpy(), seconds",
        "return seconds, seconds",
        (
            "test_typed_values.py::test_a_frame_counts_on_the_days_of_its_zone_in_every_kind_of_file",
        ),
    ),
    Mutant(
        "declared rows are all inside, whatever columns drop",
        "a total is printed without error that is the declared one and not that of the domain",
        "counted_rows",
        "return replace(dataset, rows=replace(rows, exact=False))",
        "return dataset",
        ("test_errors_hold.py::test_declared_rows_are_not_taken_for_those_inside_the_domain",),
    ),
    Mutant(
        "a denominator is large as soon as it may be printed",
        "intervals of quotients at low signal are too narrow, given that they are printed",
        "derived.SURE",
        "SURE = 2.2",
        "SURE = 1.0",
        ("test_derived.py::test_quotients_that_are_printed_hold_their_level_at_every_signal",),
    ),
)
