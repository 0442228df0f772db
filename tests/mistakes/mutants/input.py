"""Reading the file."""

from mutation import Mutant

SAFE = "test_stability.py::test_a_nasty_line_anywhere_in_a_wild_file_is_one_record_at_most"
PERSON = "test_tabulate.py::test_of_every_person_the_first_rows_count_whoever_stands_between_them"
FIRST_ROWS = "test_tabulate.py::test_a_person_keeps_the_first_rows_inside_the_domain_on_request"
MANY_PASSES = (
    "test_tabulate.py::test_of_every_person_at_most_max_rows_count_in_any_number_of_passes"
)
ROWS_STAY = "test_persons.py::test_the_rows_of_lowest_priority_stay_in_any_number_of_passes"
ANY_ROWS = "test_persons.py::test_every_set_of_a_persons_rows_is_as_likely_as_any_other[2-one pass]"
COUPLED = "test_persons.py::test_one_person_more_moves_no_row_of_the_others"
SAME_KEY = "test_persons.py::test_ids_have_one_key_where_they_are_equal_when_stripped"
SAME = "test_non_interference.py::test_whatever_the_data_everything_observable_is_the_same"
HIDDEN = f"{SAME}[persons]"
EVERY_COMMAND = f"{SAME}[every command]"
INPUT = (
    Mutant(
        "rows that were counted stay among those that are held",
        "a record counts twice, and moves the answers by twice the sensitivity",
        "TableCounts._count_held",
        "self._held, self._rows_held = [], 0",
        "self._held, self._rows_held = list(held), 0",
        (
            "test_table_counts.py::"
            "test_rows_that_are_held_and_narrow_counts_change_nothing[4294967295-1000000000-400]",
        ),
    ),
    Mutant(
        "a table that was counted with others is counted again by itself",
        "a record counts twice, and moves the answers by twice the sensitivity",
        "counted_together",
        "            del left[table]\n",
        "",
        ("test_table_counts.py::test_tables_counted_together_hold_each_table_once[300]",),
    ),
    Mutant(
        "counts stay in 32 bits however many records there are",
        "counts of more than four billion records wrap around",
        "TableCounts._count_held",
        "            self._widen()",
        "            pass",
        ("test_table_counts.py::test_counts_go_on_in_64_bits_past_what_32_hold",),
    ),
    Mutant(
        "quoted fields may hold line feeds",
        "one line with a quote swallows or frees all lines after it",
        "FileFormat",
        "newlines_in_quotes: bool = False",
        "newlines_in_quotes: bool = True",
        ("test_tabulate.py::test_counts_equal_a_line_by_line_reading",),
    ),
    Mutant(
        "chunks with quotes are read whole, wherever the quotes stand",
        "one line with a quote swallows or frees all lines after it",
        "_is_clean",
        "not _has_clean_quotes(piece, dialect)",
        "False",
        ("test_tabulate.py::test_counts_equal_a_line_by_line_reading",),
    ),
    Mutant(
        "a record goes on where a quote is open",
        "one line with a quote swallows all lines after it",
        "_read_by_line",
        "    for line in _records(piece, dialect):\n",
        '    texts = piece.decode("latin-1").split("\\n")\n'
        '    for row in csv.reader(f"{text}\\n" for text in texts):\n'
        '        line = ",".join(row).encode("latin-1")\n',
        (SAFE,),
    ),
    Mutant(
        "a lone carriage return ends a record",
        "one line is two records",
        "_read_by_line",
        "    for line in _records(piece, dialect):\n",
        '    for line in piece.replace(b"\\r", b"\\n").split(b"\\n"):\n',
        (SAFE,),
    ),
    Mutant(
        "a line that is too long is cut in two",
        "one line is two records",
        "chunks",
        "            rest = (rest + block)[: MAX_LINE + 1]\n",
        '            yield rest + block + b"\\n"\n            rest = b""\n',
        ("test_tabulate.py::test_a_line_too_long_is_one_malformed_record_in_any_chunks",),
    ),
    Mutant(
        "a line with too many fields counts for as many records as it has fields",
        "one line is any number of records",
        "_read_by_line",
        "            malformed += 1\n",
        '            malformed += max(1, line.count(b",") // width)\n',
        (SAFE,),
    ),
    Mutant(
        "a value outside the domain is counted in the other tables",
        "the tables are not those of one and the same file",
        "_Tally._attribute_codes",
        "            inside &= column_codes >= 0\n",
        "            column_codes = np.maximum(column_codes, 0)\n",
        ("test_tabulate.py::test_counts_equal_a_line_by_line_reading",),
    ),
    Mutant(
        "a person's rows are all kept",
        "a person of many rows is protected as one of max_rows",
        "KeptRows._cut_down",
        "rank < self._max_rows",
        "rank < 9 * self._max_rows",
        (PERSON, ROWS_STAY),
    ),
    Mutant(
        "the rows that stay of a person are the first of the file",
        "a panel that is sorted by year loses its last years",
        "KeptRows.add",
        '        if self._keep == "first":\n',
        "        if self._keep:\n",
        (
            ANY_ROWS,
            "test_tabulate.py::test_the_rows_that_count_of_a_person_are_any_wherever_they_stand",
        ),
    ),
    Mutant(
        "a person whose rows come late is drawn from the last of them",
        "some rows of a person are likelier than others",
        "KeptRows.add",
        "priorities = np.frombuffer(self._entropy(8 * numbers.size), np.uint64)",
        "priorities = np.frombuffer(self._entropy(8 * numbers.size), np.uint64) // (numbers + 1)",
        (ANY_ROWS,),
    ),
    Mutant(
        "which rows of a person stay depends on how many rows the data has",
        "one person more moves the rows of the others",
        "KeptRows._cut_down",
        "        rank = np.arange(rows.shape[1]) - np.repeat(first, sizes)\n",
        "        rank = np.arange(rows.shape[1]) - np.repeat(first, sizes)\n"
        "        if rows.shape[1] % 2:\n"
        "            rank = np.repeat(sizes, sizes) - rank - 1\n",
        (COUPLED,),
    ),
    Mutant(
        "two persons whose keys begin alike are not told apart",
        "a person of many rows is protected as one of max_rows",
        "persons._sorted",
        "    if undecided.any():\n",
        "    if undecided.all():\n",
        ("test_persons.py::test_rows_are_sorted_by_all_of_the_key_and_priority",),
    ),
    Mutant(
        "the persons of a later pass are forgotten",
        "whether a row counts depends on other people's rows",
        "KeptRows.begin_pass",
        "        if self._low >> 64:\n",
        "        if self._low:\n",
        (ROWS_STAY,),
    ),
    Mutant(
        "rows without an id are kept",
        "rows of nobody have no limit",
        "_Tally.rows_of_persons",
        "        inside &= named\n",
        "        inside &= named | True\n",
        (FIRST_ROWS,),
    ),
    Mutant(
        "a person's id is compared letter by letter where it is a number",
        "one person is several",
        "person_names",
        "    if not odd.true_count:\n",
        "    if True:\n",
        ("test_threats.py::test_row_25_an_id_is_compared_as_a_value_is",),
    ),
    Mutant(
        "two threads draw the numbers of person keys at once",
        "a person with a long id is two, and counts twice as often as the rows are limited to",
        "PersonKeys._first_factors",
        "with self._drawing:",
        "with Lock():",
        ("test_persons.py::test_an_id_has_one_key_in_all_threads_that_come_upon_it",),
    ),
    Mutant(
        "ids are compared by their first 16 bytes",
        "persons with long ids share one limit",
        "PersonKeys.of",
        "        if (long := np.flatnonzero(lengths > _SHORT)).size:\n",
        "        if (long := np.flatnonzero(lengths > 99 * _SHORT)).size:\n",
        (SAME_KEY,),
    ),
    Mutant(
        "a person has another key in every chunk",
        "a person of many rows is protected as one of max_rows",
        "_Tally._person_keys",
        "self._keys.of(",
        "PersonKeys().of(",
        (PERSON, MANY_PASSES),
    ),
    Mutant(
        "a person's rows are limited chunk by chunk",
        "a person of many rows is protected as one of max_rows",
        "_Tally.add_rows_of_persons",
        "        self._kept.add(rows[:2], rows[2:])\n",
        "        self._kept.add(rows[:2], rows[2:])\n"
        "        for content in self._kept.kept():\n"
        "            self._count(self._packed.unpack(content), content.shape[1])\n",
        (PERSON, MANY_PASSES),
    ),
    Mutant(
        "the header is shown where it lacks a column",
        "a file without a header shows its first record",
        "places_of",
        "{', '.join(wrong)};",
        "{', '.join(wrong)} but {', '.join(names)};",
        (
            "test_non_interference_failures.py::test_every_header_without_a_declared_column_is_refused_in_the_same_words",
        ),
    ),
    Mutant(
        "what could not be read is shown as the cause",
        "a traceback holds a line of the file",
        "_tabulate",
        "        pass\n    # Raised",
        "        raise DataError(problem)\n    # Raised",
        ("test_tabulate.py::test_a_missing_file_a_folder_and_a_broken_disk_are_named",),
    ),
    Mutant(
        "the data are copied to a temporary file",
        "records stay on a disk that nobody looks at",
        "open_regular",
        '            return path.open("rb")\n',
        "            import shutil, tempfile\n"
        "            shutil.copy(path, tempfile.mkdtemp())\n"
        '            return path.open("rb")\n',
        (HIDDEN,),
    ),
    Mutant(
        "malformed lines are counted on the screen",
        "the number of damaged records is published",
        "_Tally._coded",
        "        if self.spec.privacy.person is not None:\n",
        "        if malformed:\n"
        "            import sys\n"
        '            sys.stderr.write(f"{malformed} malformed lines\\n")\n'
        "        if self.spec.privacy.person is not None:\n",
        (HIDDEN,),
    ),
    Mutant(
        "values outside the domain are warned of",
        "that there is such a record is published",
        "_Tally._coded",
        "        if not inside.all():\n",
        "        if not inside.all():\n"
        "            import warnings\n"
        '            warnings.warn("some records are outside the domain")\n',
        (EVERY_COMMAND,),
    ),
    Mutant(
        "a file of no rows is an error",
        "whether there is anybody is published",
        "measure",
        "        draft = ledger.draft(key)\n",
        "        if not any(table.any() for table in tables.values()):\n"
        '            raise ValueError("nobody")\n'
        "        draft = ledger.draft(key)\n",
        (HIDDEN,),
    ),
    Mutant(
        "the number of records is kept in the ledger",
        "a true count is published with every release",
        "measure",
        "source=noise_source)",
        'source=f"{noise_source} of {max(int(table.sum()) for table in tables.values())}")',
        (HIDDEN,),
    ),
    Mutant(
        "a hash of the data is kept in the ledger",
        "who knows all records but one tests candidates against it",
        "measure",
        'details={"version": query.spec.dataset.version,',
        'details={"data": hash(data[0].read_bytes()), "version": query.spec.dataset.version,',
        (HIDDEN,),
    ),
    Mutant(
        "the name of the data file is published",
        "paths name people and machines",
        "measure",
        'details={"version": query.spec.dataset.version,',
        'details={"data": data[0].name, "version": query.spec.dataset.version,',
        (
            "test_release_protocol.py::"
            "test_the_data_are_copied_elsewhere_and_nothing_of_either_place_is_published",
        ),
    ),
    Mutant(
        "a chunk with NUL in it is read whole",
        "what a line is depends on the lines around it",
        "_is_clean",
        '        b"\\0" in piece\n        or ',
        "        ",
        (SAFE,),
    ),
    Mutant(
        "a chunk with lone carriage returns is read whole",
        "one line is two records, as the lines around it have it",
        "_is_clean",
        '        or piece.count(b"\\r") != piece.count(b"\\r\\n")\n',
        "",
        (
            "test_tabulate.py::test_a_chunk_with_what_the_fast_reader_takes_for_more_than_text"
            "_is_read_line_by_line",
        ),
    ),
    Mutant(
        "a mark at the beginning of a chunk is dropped",
        "what a line is depends on where a chunk begins",
        "_is_clean",
        "        or piece.startswith(_BOM)  # pyarrow would drop it from the first field\n",
        "",
        ("test_tabulate.py::test_what_a_line_is_does_not_depend_on_where_a_chunk_begins",),
    ),
    Mutant(
        "a line that is too long is read with its chunk",
        "what a line is depends on the lines around it",
        "_is_clean",
        "_has_long_line(piece) if not quoted",
        "False if not quoted",
        ("test_tabulate.py::test_what_a_line_is_does_not_depend_on_where_a_chunk_begins",),
    ),
    Mutant(
        "a damaged line takes its neighbour along",
        "one line is two records, or none where there was one",
        "_read_by_line",
        "        if record is None:\n",
        "        if record is None and malformed:\n",
        (SAFE,),
    ),
    Mutant(
        "the records of a chunk are kept beside the release",
        "records stay on a disk that nobody looks at",
        "measure",
        "        draft = ledger.draft(key)\n",
        "        draft = ledger.draft(key)\n"
        "        np.save('.exact.npy', np.concatenate([t.ravel() for t in tables.values()]))\n",
        (
            HIDDEN,
            "test_threats.py::test_row_15_a_release_opens_no_file_for_writing_but_its_own",
        ),
    ),
    Mutant(
        "a file without records is not read a second time",
        "whoever watches which files are opened learns whether there is anybody",
        "measure",
        "        draft = ledger.draft(key)\n",
        "        draft = ledger.draft(key)\n"
        "        if not any(table.any() for table in tables.values()):\n"
        "            data[0].read_bytes()\n",
        (HIDDEN,),
    ),
    Mutant(
        "RAP's total is what was counted",
        "the number of records is published",
        "RapQuery.noisy",
        "noisy_total(counted, self.mechanism, chance)]",
        "noisy_total(counted, self.mechanism, chance) * 0 + (counted << GRID_BITS)]",
        (
            "test_non_interference.py::"
            "test_whatever_the_data_everything_observable_is_the_same[RAP]",
        ),
    ),
    Mutant(
        "why a file cannot be opened is said in the system's words",
        "they may hold what a link or a mount is called",
        "open_regular",
        '        except OSError:\n            pass\n    raise DataError(f"{path} is not',
        "        except OSError as error:\n"
        "            raise DataError(str(error)) from None\n"
        '    raise DataError(f"{path} is not',
        ("test_non_interference_failures.py::test_a_file_that_may_not_be_read_is_refused",),
    ),
    Mutant(
        "what broke the data hangs on the error that a release ends with",
        "a traceback shows the line that could not be read",
        "_charged_tables",
        "        problem = str(error)\n",
        "        problem = str(error)\n"
        "        raise DataError(\n"
        '            f"{problem}. The charge stands: it was made before the data were read."\n'
        "        ) from error\n",
        ("test_non_interference_failures.py::test_what_the_data_broke_with_hangs_on_no_error",),
    ),
    Mutant(
        "a first line that is no header is shown",
        "a file without a header shows its first record",
        "TextFile._located",
        'f"{self.path}: the first line is',
        'f"{self.path}: {line!r}: the first line is',
        (
            "test_non_interference_failures.py::"
            "test_every_file_without_a_header_is_refused_in_the_same_words",
            "test_fuzz_csv.py::test_any_header_is_read_or_refused_without_being_shown",
        ),
    ),
    Mutant(
        "a record that is damaged ends the run",
        "whether there is such a record is published",
        "_read_by_line",
        "            malformed += 1\n",
        "            raise ValueError\n",
        ("test_fuzz_csv.py::test_no_bytes_below_a_good_header_make_a_release_fail",),
    ),
)
