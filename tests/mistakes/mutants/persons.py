"""How many rows persons have, and how much of them is held at a time."""

from mutation import Mutant

NUMBERED = "test_persons.py::test_the_rows_of_lowest_priority_stay_in_any_number_of_passes"
COUPLED = "test_persons.py::test_one_person_more_moves_no_row_of_the_others"
TWIN = "test_rows_per_person.py::test_one_row_of_each_person_says_how_many_there_are"
ONE_MORE = "test_rows_per_person.py::test_one_person_more_adds_max_rows_rows_at_most_and_one_number"
SOURCES = "test_rows_per_person.py::test_every_source_gives_the_same_numbers[rows.parquet]"
AUDIT = "audit:neighbours"
PERSONS = (
    Mutant(
        "every row that stays of a person has a number",
        "a person is counted as several persons",
        "KeptRows._cut_down",
        "numbers, rows[-1] = np.add.reduceat(rows[-1], first), 0",
        "numbers = np.add.reduceat(rows[-1], first)",
        (NUMBERED, TWIN, SOURCES),
    ),
    Mutant(
        "the number of a person's rows is that of those that stay",
        "what max_rows leaves out cannot be seen, and max_rows is chosen by itself",
        "KeptRows._cut_down",
        "            rows[-1, first] = numbers\n",
        "            rows[-1, first] = np.minimum(numbers, self._max_rows)\n",
        (NUMBERED, TWIN, SOURCES, AUDIT),
    ),
    Mutant(
        "a person's number goes on from the person before",
        "one person more moves the numbers of others",
        "KeptRows._cut_down",
        "            rows[-1, first] = numbers\n",
        "            rows[-1, first] = np.cumsum(numbers)\n",
        (NUMBERED, COUPLED, TWIN),
    ),
    Mutant(
        "a person's other rows count as persons of one row",
        "one person more moves max_rows counts where it is one more person",
        "_Tally._numbers",
        "np.where(known > 0, known - 1, other)",
        "np.maximum(known - 1, 0)",
        (TWIN, ONE_MORE, SOURCES),
    ),
    Mutant(
        "persons of more rows than are told apart are left out",
        "a person with many rows is in no table",
        "_Tally._numbers",
        "np.where(known > 0, known - 1, other)",
        "np.where((known > 0) & (known < other), known - 1, other)",
        (TWIN, SOURCES),
    ),
    Mutant(
        "the limit of memory is the default, whatever is named",
        "a release takes more memory than its operator has",
        "_charged_tables",
        "memory=memory",
        "memory=MAX_STATE_BYTES",
        ("test_rows_per_person.py::test_the_memory_that_is_named_is_that_of_the_count",),
    ),
)
