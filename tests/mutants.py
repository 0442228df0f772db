"""Mistakes that must be noticed: each a changed line of the product, and what notices it.

A row that no longer fits the code is mended or replaced, never dropped: the mistake can still be
made. Who adds a protection adds its rows.
"""

from mutation import Mutant

NOISE, BULK = "measurement/noise.py", "measurement/bulk_noise.py"
ACCOUNTING, MECHANISM = "measurement/accounting.py", "measurement/mechanism.py"
SENSITIVITY, EXACT = "strategy/sensitivity.py", "measurement/exact.py"
CURATOR, QUESTIONS = "measurement/curator.py", "measurement/questions.py"
LEDGER, EVENTS = "measurement/ledger.py", "measurement/ledger_events.py"
STORE, FILES = "measurement/ledger_store.py", "measurement/ledger_files.py"
CHECKS, CAPS = "measurement/ledger_checks.py", "measurement/ledger_caps.py"
TABULATE, LINES, CODES = (
    "measurement/tabulate.py",
    "measurement/lines.py",
    "measurement/codes.py",
)
RAP, ADAPTIVE = "measurement/rap_mechanism.py", "measurement/adaptive.py"
SELECTION, DISJOINT = "measurement/selection.py", "measurement/disjoint.py"

# What a release draws.
DRAWN = (
    Mutant(
        "OpenDP's scale is 5 % too small",
        "every number is less private than what is charged",
        NOISE,
        "    return mechanism\n\n\ndef _built",
        "    return _built(budget.noise, 0.95 * scale)\n\n\ndef _built",
        ("test_noise.py::test_either_source_draws_at_the_very_scale", "audit:sampler"),
    ),
    Mutant(
        "OpenDP's scale is 5 % too large",
        "every number is worse than its stated error",
        NOISE,
        "    return mechanism\n\n\ndef _built",
        "    return _built(budget.noise, 1.05 * scale)\n\n\ndef _built",
        ("test_noise.py::test_either_source_draws_at_the_very_scale", "audit:sampler"),
    ),
    Mutant(
        "the bulk sampler's scale is 5 % too small",
        "every number is less private than what is charged",
        NOISE,
        "BulkSampler(budget.noise, scale)",
        "BulkSampler(budget.noise, max(1.0, 0.95 * scale))",
        ("test_noise.py::test_either_source_draws_at_the_very_scale", "audit:sampler"),
    ),
    Mutant(
        "the bulk sampler's scale is 2 % too small",
        "every number is less private than what is charged, by less than a chart shows",
        NOISE,
        "BulkSampler(budget.noise, scale)",
        "BulkSampler(budget.noise, max(1.0, 0.98 * scale))",
        ("test_noise.py::test_either_source_draws_at_the_very_scale",),
    ),
    Mutant(
        "true answers are returned",
        "nothing is private",
        NOISE,
        "= add_noise(chunk)",
        "= chunk",
        ("test_noise.py::test_no_answer_comes_back_as_it_was", "audit:sampler"),
    ),
    Mutant(
        "one row is left without noise",
        "one true count is published",
        NOISE,
        "    return noisy\n",
        "    noisy[:1] = answers[:1]\n    return noisy\n",
        ("test_noise.py::test_no_answer_comes_back_as_it_was", "audit:residuals"),
    ),
    Mutant(
        "OpenDP's noise is shared by all rows",
        "differences of answers are exact",
        NOISE,
        "np.asarray(mechanism(chunk), dtype=np.int64)",
        "chunk + (mechanism(chunk[:1])[0] - int(chunk[0]))",
        ("test_noise.py::test_big_vectors_are_drawn_in_chunks_with_fresh_noise", "audit:sampler"),
    ),
    Mutant(
        "the bulk sampler's noise is shared by all rows",
        "differences of answers are exact",
        NOISE,
        "    noise = sampler.sample(chunk.size)\n",
        "    noise = np.repeat(sampler.sample(1), chunk.size)\n",
        ("test_noise.py::test_big_vectors_are_drawn_in_chunks_with_fresh_noise", "audit:sampler"),
    ),
    Mutant(
        "every chunk has the noise of the first",
        "differences of answers of two chunks are exact",
        NOISE,
        "        noisy[start : start + chunk.size] = add_noise(chunk)\n",
        "        if not start:\n"
        "            own = add_noise(chunk) - chunk\n"
        "        noisy[start : start + chunk.size] = chunk + own[: chunk.size]\n",
        ("test_noise.py::test_big_vectors_are_drawn_in_chunks_with_fresh_noise",),
    ),
    Mutant(
        "the scale is not held against the budget",
        "a scale from anywhere is drawn at",
        NOISE,
        "if sensitivity <= 0 or _cost(budget.noise, sensitivity, scale) > budget.amount:",
        "if sensitivity <= 0:",
        ("test_noise.py::test_bulk_noise_is_held_against_the_budget_to_the_last_bit",),
    ),
    Mutant(
        "Gaussian noise is held against half its cost",
        "a scale smaller by a root of two is drawn at",
        NOISE,
        "sensitivity / (2 * exact**2)",
        "sensitivity / (4 * exact**2)",
        ("test_noise.py::test_bulk_noise_is_held_against_the_budget_to_the_last_bit",),
    ),
    Mutant(
        "the library's own privacy map is not asked",
        "a mistake of ours in the scale has no second look",
        NOISE,
        "    if not (0 < charged < math.inf and charged <= budget.amount):",
        "    if charged is None:",
        ("test_noise.py::test_the_library_too_must_agree_to_the_budget",),
    ),
    Mutant(
        "OpenDP counts in 32 bits",
        "noise is cut off at 2^31",
        NOISE,
        'dp.atom_domain(T="i64")',
        "dp.atom_domain(T=int)",
        ("test_noise.py::test_two_draws_never_share_their_noise",),
    ),
    Mutant(
        "a version of OpenDP with a biased sampler is taken",
        "noise does not have its law",
        "measurement/libraries.py",
        "_order(version) >= _order(self.oldest)",
        "bool(_order(self.oldest))",
        ("test_noise.py::test_an_old_library_is_refused",),
    ),
    Mutant(
        "the text of OpenDP's errors travels on",
        "a true answer stands in a traceback",
        NOISE,
        '        pass\n    raise DpqueryError("the noise source failed; nothing was measured")',
        '        raise DpqueryError("the noise source failed; nothing was measured")',
        ("test_noise.py::test_a_failing_library_leaves_no_trace_of_values",),
    ),
    Mutant(
        "answers plus noise may wrap around",
        "a very large noise value gives the sign of the answer away",
        NOISE,
        "chunk + np.clip(noise, -LARGEST_ANSWER - chunk, LARGEST_ANSWER - chunk)",
        "chunk + noise",
        ("test_noise.py::test_bulk_noise_is_added_without_wrapping_around",),
    ),
    Mutant(
        "answers beyond 2^62 are measured",
        "an integer that wrapped around moves by more than the sensitivity",
        NOISE,
        "    if answers.size and not _within_range(answers):",
        "    if answers.size < 0:",
        ("test_noise.py::test_an_answer_that_could_overflow_is_refused_without_showing_it",),
    ),
    Mutant(
        "float noise",
        "the low bits of a float give the true answer away",
        NOISE,
        "    noise = sampler.sample(chunk.size)\n",
        "    own = np.random.default_rng().laplace(0, 1 / float(sampler.law.rate), chunk.size)\n"
        "    noise = np.rint(own).astype(np.int64)\n",
        (
            "test_architecture.py::test_the_package_keeps_the_rule"
            "[only_strategy_uses_seedable_generators]",
            "audit:sampler",
        ),
    ),
    Mutant(
        "seeded noise in bulk",
        "who knows the seed subtracts the noise",
        BULK,
        "        self._entropy, self._slow = entropy, SlowSampler(entropy)",
        "        entropy = np.random.default_rng(0).bytes\n"
        "        self._entropy, self._slow = entropy, SlowSampler(entropy)",
        (
            "test_bulk_noise.py::test_two_samplers_share_nothing_and_no_draw_is_repeated",
            "audit:independence",
        ),
    ),
    Mutant(
        "a generator that can be predicted feeds the bulk sampler",
        "some noise gives all further noise away",
        BULK,
        "scale: float, *, entropy: Entropy = os.urandom)",
        "scale: float, *, entropy: Entropy = np.random.default_rng().bytes)",
        (
            "test_bulk_noise.py::test_the_product_draws_from_the_operating_system",
            "test_architecture.py::test_the_package_keeps_the_rule"
            "[only_strategy_uses_seedable_generators]",
        ),
    ),
    Mutant(
        "bulk noise leans to one side",
        "answers are biased, and one sign tells more than the other",
        BULK,
        "sign = 1 - 2 * (word >> kind(law.bits) & kind(1)).astype(np.int64)",
        "sign = 1 - 2 * ((word >> kind(law.bits) & kind(1)) & (word & kind(1))).astype(np.int64)",
        ("test_bulk_noise.py::test_the_low_bits_are_fair_and_so_is_the_sign", "audit:sampler"),
    ),
    Mutant(
        "zero is drawn once for each sign",
        "noise is zero too often: the true answer shows",
        BULK,
        "weights = [Decimal(1), *",
        "weights = [Decimal(2), *",
        (
            "test_bulk_noise.py::test_the_thresholds_are_right_to_the_last_bit[laplace-1.0]",
            "audit:sampler",
        ),
    ),
    Mutant(
        "the tail of bulk noise is cut off",
        "a far answer rules its neighbour out for certain",
        BULK,
        "noise[i] = self._accepted(1)[0] if drawn is None else sign[i] * min(drawn, LARGEST)",
        "noise[i] = self._accepted(1)[0]",
        ("test_bulk_noise.py::test_a_choice_of_the_tail_is_drawn_there_with_either_sign",),
    ),
    Mutant(
        "the tail has one sign only",
        "a far answer rules its neighbour out for certain",
        BULK,
        "sign[i] * min(drawn, LARGEST)",
        "min(drawn, LARGEST)",
        ("test_bulk_noise.py::test_a_choice_of_the_tail_is_drawn_there_with_either_sign",),
    ),
    Mutant(
        "a float's rounding decides near its bound",
        "the law is off by what the rounding is",
        BULK,
        "np.flatnonzero(np.abs(real - d) < _MARGIN)",
        "np.flatnonzero(np.abs(real - d) < 0)",
        ("test_bulk_noise.py::test_a_real_close_to_its_bound_is_compared_exactly",),
    ),
    Mutant(
        "a tie in 64 bits is not drawn on",
        "the law is off by 2^-64 at every threshold",
        BULK,
        "        for i in np.flatnonzero(tied):",
        "        for i in np.flatnonzero(tied)[:0]:",
        ("test_bulk_noise.py::test_a_tie_in_64_bits_is_decided_by_further_bits",),
    ),
    Mutant(
        "proposals within a block are never refused",
        "noise is flat within a block and jumps between blocks",
        BULK,
        "            if refused.size:",
        "            if refused.size > size:",
        ("test_bulk_noise.py::test_within_a_block_the_law_falls_as_it_should[laplace-260.7]",),
    ),
    Mutant(
        "a refused proposal is drawn from the blocks' low ends alone",
        "the law falls too fast within a block",
        BULK,
        "            if j % 2 == 0:",
        "            if j % 2 == 1:",
        ("test_bulk_noise.py::test_within_a_block_the_law_falls_as_it_should[laplace-260.7]",),
    ),
    Mutant(
        "bounded numbers lean to the small ones",
        "RAP's choice among queries of one score is not even",
        SELECTION,
        "        while (drawn := random.bits(bits)) >= bound:\n"
        "            pass\n"
        "        return drawn",
        "        return random.bits(bits) % bound",
        ("test_selection.py::test_every_number_below_a_bound_has_as_many_bytes",),
    ),
)

# What noise is needed: sensitivity, scale and charge.
PRICED = (
    Mutant(
        "Laplace noise for the L2 norm",
        "noise is too small by the root of the rows that a record moves",
        MECHANISM,
        "    exact = sensitivity(measurements, strategy.noise)\n",
        '    exact = math.isqrt(sensitivity(measurements, "gaussian") - 1) + 1\n'
        '    exact = exact if strategy.noise == "laplace" else exact**2\n',
        (
            "test_mechanism.py::test_no_neighbour_moves_the_answers_further_than_the_sensitivity",
            "audit:residuals",
        ),
    ),
    Mutant(
        "the mean column in place of the largest",
        "records in the larger columns are protected too little",
        SENSITIVITY,
        "    return int(np.max(total))",
        "    return int(np.mean(total))",
        ("test_sensitivity.py::test_sensitivity_is_the_largest_column_norm", "audit:residuals"),
    ),
    Mutant(
        "the smallest column of a product in place of the largest",
        "records in the larger columns are protected too little",
        SENSITIVITY,
        "np.array(max(own), dtype=object)",
        "np.array(min(own), dtype=object)",
        ("test_sensitivity.py::test_sensitivity_is_the_largest_column_norm",),
    ),
    Mutant(
        "the first measurement is free",
        "what is measured first has no budget set aside",
        SENSITIVITY,
        "    constant, varying, norms = 0, [], _Norms()\n    for measurement in measurements:",
        "    constant, varying, norms = 0, [], _Norms()\n    for measurement in measurements[1:]:",
        ("test_sensitivity.py::test_marginals_add_up_without_a_search_of_the_domain",),
    ),
    Mutant(
        "column norms wrap around at 64 bits",
        "wide integers have too small a sensitivity",
        SENSITIVITY,
        "    if factor.max_abs() ** power * factor.shape[0] < 1 << 63:",
        "    if factor.max_abs():",
        ("test_sensitivity.py::test_entries_that_would_wrap_64_bits_are_summed_exactly",),
    ),
    Mutant(
        "beyond the search limit the largest part stands for the sum",
        "a union of many parts has too small a sensitivity",
        SENSITIVITY,
        "        return sum(own.largest() for own in blocks)",
        "        return max(own.largest() for own in blocks)",
        ("test_sensitivity.py::test_beyond_the_search_limit_sensitivity_is_an_upper_bound",),
    ),
    Mutant(
        "thresholds are priced as products",
        "a record that meets several predicates moves more rows than are counted",
        SENSITIVITY,
        "        if own and not block.is_product:",
        "        if own and not block.is_product and False:",
        ("test_sensitivity.py::test_sensitivity_is_the_largest_column_norm",),
    ),
    Mutant(
        "flooring to the grid is not charged for",
        "each row can move by one step more than the noise hides",
        MECHANISM,
        "        return -(-exact >> shift) + support",
        "        return exact >> shift",
        ("test_mechanism.py::test_no_neighbour_moves_the_answers_further_than_the_sensitivity",),
    ),
    Mutant(
        "flooring to the grid is not charged for under Gaussian noise",
        "each row can move by one step more than the noise hides",
        MECHANISM,
        "    return (-(-length >> shift) + math.isqrt(support) + 1) ** 2",
        "    return (length >> shift) ** 2",
        ("test_mechanism.py::test_no_neighbour_moves_the_answers_further_than_the_sensitivity",),
    ),
    Mutant(
        "a column's rows are undercounted on the grid",
        "flooring costs more than is charged",
        SENSITIVITY,
        "factor.column_counts().max()",
        "factor.column_counts().min()",
        ("test_sensitivity.py::test_column_support_bounds_the_nonzero_entries_of_a_column",),
    ),
    Mutant(
        "max_rows does not count",
        "a person of several rows is protected as one row is",
        MECHANISM,
        "    return privacy.max_rows * (",
        "    return 1 * (",
        (
            "test_mechanism.py::test_no_neighbour_moves_the_answers_further_than_the_sensitivity",
            "audit:residuals",
        ),
    ),
    Mutant(
        "a record replaced counts as one removed",
        "the record put in its place is not paid for",
        MECHANISM,
        '(2 if privacy.neighbours == "replace" else 1)',
        "1",
        ("test_mechanism.py::test_no_neighbour_moves_the_answers_further_than_the_sensitivity",),
    ),
    Mutant(
        "max_rows counts once and not squared under Gaussian noise",
        "a person of several rows is protected too little",
        MECHANISM,
        "steps(privacy) ** 2\n    scale",
        "steps(privacy)\n    scale",
        ("test_mechanism.py::test_no_neighbour_moves_the_answers_further_than_the_sensitivity",),
    ),
    Mutant(
        "the scale is rounded down",
        "the charge passes the budget in the last digit",
        ACCOUNTING,
        "    while _charge(budget.kind, step, scale) > limit:",
        "    while False:",
        ("test_accounting.py::test_scale_meets_the_budget_exactly_and_wastes_nothing",),
    ),
    Mutant(
        "a sensitivity is rounded down to a float",
        "wide integers are protected too little in the last digit",
        ACCOUNTING,
        "        return _float_up(Fraction(sensitivity))",
        "        return _float_down(Fraction(sensitivity))",
        ("test_accounting.py::test_sensitivity_is_rounded_up",),
    ),
    Mutant(
        "the scale is for twice the budget",
        "noise is half of what is charged for",
        ACCOUNTING,
        "    limit = Fraction(_float_down(budget.amount))\n",
        "    limit = Fraction(_float_down(2 * budget.amount))\n",
        ("test_accounting.py::test_scale_meets_the_budget_exactly_and_wastes_nothing",),
    ),
    Mutant(
        "delta is ignored",
        "rho = epsilon^2 / 2 does not keep (epsilon, delta)",
        ACCOUNTING,
        "    rho = _largest_rho(epsilon, delta)\n",
        "    rho = Fraction(math.floor(epsilon**2 / 2 * UNIT), UNIT)\n",
        ("test_accounting.py::test_rho_never_promises_more_than_it_keeps",),
    ),
    Mutant(
        "the bound of the conversion loses a term that grows with the order",
        "rho keeps less than the (epsilon, delta) that is promised",
        ACCOUNTING,
        "(alpha * _decimal(delta)).ln() / (alpha - 1)",
        "(alpha * _decimal(delta)).ln() / alpha",
        (
            "test_accounting.py::test_conversion_is_the_minimum_over_all_orders",
            "test_accounting.py::test_rho_is_the_largest_that_meets_epsilon_by_opendp_too",
        ),
    ),
    Mutant(
        "the conversion takes ln(1 - 1 / alpha) twice",
        "the epsilon stated for what is spent is too small",
        ACCOUNTING,
        "    return (1 - 1 / alpha).ln() - ",
        "    return 2 * (1 - 1 / alpha).ln() - ",
        ("test_accounting.py::test_conversion_is_the_minimum_over_all_orders",),
    ),
    Mutant(
        "rho is rounded up from (epsilon, delta)",
        "the promise is passed in the last digit",
        ACCOUNTING,
        "    return Fraction(math.floor(Fraction(exact) * UNIT), UNIT)",
        "    return Fraction(math.ceil(Fraction(exact) * UNIT), UNIT)",
        ("test_accounting.py::test_rho_is_rounded_down_and_epsilon_up",),
    ),
    Mutant(
        "the epsilon of what is spent is rounded down",
        "the loss is understated in the last digit",
        ACCOUNTING,
        "    return max(0.0, _float_up(Fraction(exact)))",
        "    return max(0.0, _float_down(Fraction(exact)))",
        ("test_accounting.py::test_rho_is_rounded_down_and_epsilon_up",),
    ),
    Mutant(
        "Laplace noise is charged as if its range were bounded",
        "epsilon^2 / 8 is a quarter of what it costs",
        ACCOUNTING,
        "spent.amount**2 / 2 if",
        "spent.amount**2 / 8 if",
        ("test_accounting.py::test_charges_round_up_and_caps_round_down",),
    ),
    Mutant(
        "a charge in rho is rounded down",
        "many small releases are free in part",
        ACCOUNTING,
        "        return math.ceil(rho * UNIT)",
        "        return math.floor(rho * UNIT)",
        ("test_accounting.py::test_charges_round_up_and_caps_round_down",),
    ),
    Mutant(
        "a charge in epsilon is rounded down",
        "many small releases are free in part",
        ACCOUNTING,
        "    return math.ceil(spent.amount * UNIT)",
        "    return math.floor(spent.amount * UNIT)",
        ("test_accounting.py::test_charges_round_up_and_caps_round_down",),
    ),
    Mutant(
        "a cap in epsilon is rounded up",
        "more than the cap can be spent",
        ACCOUNTING,
        "math.floor(budget.epsilon * UNIT)",
        "math.ceil(budget.epsilon * UNIT)",
        ("test_accounting.py::test_charges_round_up_and_caps_round_down",),
    ),
    Mutant(
        "a cap in rho is rounded up",
        "more than the cap can be spent",
        ACCOUNTING,
        "math.floor(budget.rho * UNIT)",
        "math.ceil(budget.rho * UNIT)",
        ("test_accounting.py::test_charges_round_up_and_caps_round_down",),
    ),
    Mutant(
        "Gaussian noise is charged to a pure cap by its rho",
        "a sum of unlike currencies bounds nothing",
        ACCOUNTING,
        '    if spent.kind == "zcdp":\n        raise',
        '    if spent.kind == "zcdp" and currency == "rho":\n        raise',
        ("test_accounting.py::test_zcdp_is_refused_by_a_pure_cap",),
    ),
    Mutant(
        "an epsilon is read as a float",
        "ten charges of 0.1 do not add up to 1",
        ACCOUNTING,
        "            exact = Fraction(value)\n",
        "            exact = Fraction(float(value))\n",
        ("test_accounting.py::test_epsilon_is_read_exactly",),
    ),
    Mutant(
        "the manifest rounds the charge down",
        "a release says that it cost less than the ledger has",
        "release/manifest.py",
        "units_text(math.ceil(own.amount * UNIT))",
        "units_text(math.floor(own.amount * UNIT))",
        ("test_release.py::test_the_manifest_states_the_charge_that_the_ledger_has",),
    ),
    Mutant(
        "answers are computed in floats",
        "beyond 2^53 a record can move an answer by more than the sensitivity",
        EXACT,
        "        answers = np.multiply(block.apply(table).ravel(), weight)\n",
        "        answers = block.apply(table).ravel().astype(float) * weight\n"
        "        answers = answers.astype(np.int64)\n",
        ("test_exact.py::test_answers_that_no_float_holds_are_exact",),
    ),
    Mutant(
        "a carry is lost between digits",
        "one record can move an answer by 2^24",
        EXACT,
        "        held = digit + carry\n",
        "        held = digit\n",
        ("test_exact.py::test_answers_equal_python_integers_at_every_width",),
    ),
    Mutant(
        "more than 2^36 records are counted",
        "answers wrap around",
        EXACT,
        "    if table.size and int(table.sum()) >= 1 << RECORD_BITS:",
        "    if not table.size:",
        ("test_exact.py::test_more_records_than_declared_possible_are_refused",),
    ),
    Mutant(
        "integers too wide for the digits are let through",
        "answers wrap around",
        EXACT,
        "        if _bits(own) > 62 and max(growth).bit_length() + _DIGIT > 61:",
        "        if not growth:",
        ("test_exact.py::test_integers_too_wide_for_the_digits_are_refused_before_any_data",),
    ),
    Mutant(
        "signed blocks are cut to the grid by their entries of one term",
        "answers do not fit their bits",
        EXACT,
        "    return largest * sum(abs(coef) for coef, _ in block.terms)",
        "    return largest",
        ("test_exact.py::test_the_bound_on_entries_holds_for_signed_blocks",),
    ),
)

# Reading the file.
SAFE = "test_stability.py::test_a_nasty_line_anywhere_in_a_wild_file_is_one_record_at_most"
PERSON = "test_tabulate.py::test_of_every_person_the_first_rows_count_whoever_stands_between_them"
HIDDEN = (
    "test_non_interference.py::test_whatever_the_data_everything_observable_is_the_same[persons]"
)
READ = (
    Mutant(
        "quoted fields may hold line feeds",
        "one line with a quote swallows or frees all lines after it",
        LINES,
        "ParseOptions(quote_char=False, newlines_in_values=False)",
        "ParseOptions(quote_char='\"', newlines_in_values=True)",
        (
            "test_tabulate.py::test_a_chunk_that_is_read_whole_has_a_record_a_line_whatever_is_in_it",
        ),
    ),
    Mutant(
        "chunks with quotes are read whole, line feeds in quotes and all",
        "one line with a quote swallows or frees all lines after it",
        LINES,
        '        b\'"\' in chunk\n        or b"\\0" in chunk',
        '        b"\\0" in chunk',
        ("test_tabulate.py::test_counts_equal_a_line_by_line_reading",),
    ),
    Mutant(
        "a record goes on where a quote is open",
        "one line with a quote swallows all lines after it",
        LINES,
        '    for line in chunk.split(b"\\n"):\n',
        '    texts = chunk.decode("latin-1").split("\\n")\n'
        '    for row in csv.reader(f"{text}\\n" for text in texts):\n'
        '        line = ",".join(row).encode("latin-1")\n',
        (SAFE,),
    ),
    Mutant(
        "a lone carriage return ends a record",
        "one line is two records",
        LINES,
        '    for line in chunk.split(b"\\n"):\n',
        '    for line in chunk.replace(b"\\r", b"\\n").split(b"\\n"):\n',
        (SAFE,),
    ),
    Mutant(
        "a line that is too long is cut in two",
        "one line is two records",
        LINES,
        "            rest = (rest + block)[: MAX_LINE + 1]\n",
        '            yield rest + block + b"\\n"\n            rest = b""\n',
        ("test_tabulate.py::test_a_line_too_long_is_one_malformed_record_in_any_chunks",),
    ),
    Mutant(
        "a line with too many fields counts for as many records as it has fields",
        "one line is any number of records",
        LINES,
        "            malformed += 1\n",
        '            malformed += max(1, line.count(b",") // width)\n',
        (SAFE,),
    ),
    Mutant(
        "a value outside the domain is counted in the other tables",
        "the tables are not those of one and the same file",
        TABULATE,
        "            inside &= own >= 0\n",
        "            own = np.maximum(own, 0)\n",
        ("test_tabulate.py::test_counts_equal_a_line_by_line_reading",),
    ),
    Mutant(
        "a person's rows are all kept",
        "a person of many rows is protected as one of max_rows",
        TABULATE,
        "bool(person) and kept < limit",
        "bool(person) and kept < 9 * limit",
        (PERSON,),
    ),
    Mutant(
        "the rows kept of a person are forgotten when there are many persons",
        "whether a row counts depends on other people's rows",
        TABULATE,
        "                if keep:\n",
        "                if len(self._kept) > 1:\n"
        "                    self._kept.clear()\n"
        "                if keep:\n",
        (PERSON,),
    ),
    Mutant(
        "rows without an id are kept",
        "rows of nobody have no limit",
        TABULATE,
        "bool(person) and kept",
        "kept",
        ("test_tabulate.py::test_a_person_keeps_the_first_rows_inside_the_domain",),
    ),
    Mutant(
        "a person's id is not stripped of spaces",
        "one person is several",
        TABULATE,
        "stripped = [text.strip() for text in distinct]",
        "stripped = [bytes(text) for text in distinct]",
        ("test_tabulate.py::test_a_person_keeps_the_first_rows_inside_the_domain",),
    ),
    Mutant(
        "a person's rows are limited chunk by chunk",
        "a person of many rows is protected as one of max_rows",
        TABULATE,
        "        people = (person for",
        "        self._kept = {}\n        people = (person for",
        (PERSON,),
    ),
    Mutant(
        "the header is shown where it lacks a column",
        "a file without a header shows its first record",
        TABULATE,
        "exactly once: \"\n            f\"{', '.join(wrong)};",
        "exactly once: \"\n            f\"{', '.join(wrong)} but {', '.join(names)};",
        (
            "test_non_interference_failures.py::test_every_header_without_a_declared_column_is_refused_in_the_same_words",
        ),
    ),
    Mutant(
        "what could not be read is shown as the cause",
        "a traceback holds a line of the file",
        TABULATE,
        "            pass\n    # Raised",
        '            raise DataError(f"{path} could not be read to its end")\n    # Raised',
        ("test_tabulate.py::test_a_missing_file_a_folder_and_a_broken_disk_are_named",),
    ),
    Mutant(
        "the data are copied to a temporary file",
        "records stay on a disk that nobody looks at",
        TABULATE,
        '            return path.open("rb")\n',
        "            import shutil, tempfile\n"
        "            shutil.copy(path, tempfile.mkdtemp())\n"
        '            return path.open("rb")\n',
        (HIDDEN,),
    ),
    Mutant(
        "malformed lines are counted on the screen",
        "the number of damaged records is published",
        TABULATE,
        "        by_name = dict(",
        "        if malformed:\n"
        "            import sys\n"
        '            sys.stderr.write(f"{malformed} malformed lines\\n")\n'
        "        by_name = dict(",
        (HIDDEN,),
    ),
    Mutant(
        "values outside the domain are warned of",
        "that there is such a record is published",
        TABULATE,
        "        if not inside.all():\n",
        "        if not inside.all():\n"
        "            import warnings\n"
        '            warnings.warn("some records are outside the domain")\n',
        (HIDDEN,),
    ),
    Mutant(
        "a file of no rows is an error",
        "whether there is anybody is published",
        CURATOR,
        "        draft = ledger.draft(key)\n",
        "        if not any(own.any() for own in tables.values()):\n"
        '            raise ValueError("nobody")\n'
        "        draft = ledger.draft(key)\n",
        (HIDDEN,),
    ),
    Mutant(
        "the number of records is kept in the ledger",
        "a true count is published with every release",
        CURATOR,
        "source=noise_source)",
        'source=f"{noise_source} of {max(int(own.sum()) for own in tables.values())}")',
        (HIDDEN,),
    ),
    Mutant(
        "a hash of the data is kept in the ledger",
        "who knows all records but one tests candidates against it",
        CURATOR,
        'details={"version": query.spec.dataset.version,',
        'details={"data": hash(data.read_bytes()), "version": query.spec.dataset.version,',
        (HIDDEN,),
    ),
    Mutant(
        "the name of the data file is published",
        "paths name people and machines",
        CURATOR,
        'details={"version": query.spec.dataset.version,',
        'details={"data": data.name, "version": query.spec.dataset.version,',
        (
            "test_release_protocol.py::"
            "test_the_data_are_copied_elsewhere_and_nothing_of_either_place_is_published",
        ),
    ),
    Mutant(
        "a chunk with NUL in it is read whole",
        "what a line is depends on the lines around it",
        LINES,
        '        or b"\\0" in chunk\n',
        "",
        (SAFE,),
    ),
    Mutant(
        "a chunk with lone carriage returns is read whole",
        "one line is two records, as the lines around it have it",
        LINES,
        '        or chunk.count(b"\\r") != chunk.count(b"\\r\\n")\n',
        "",
        (SAFE,),
    ),
    Mutant(
        "a mark at the beginning of a chunk is dropped",
        "what a line is depends on where a chunk begins",
        LINES,
        "        or chunk.startswith(_BOM)  # pyarrow would drop it from the first field\n",
        "",
        ("test_tabulate.py::test_what_a_line_is_does_not_depend_on_where_a_chunk_begins",),
    ),
    Mutant(
        "a line that is too long is read with its chunk",
        "what a line is depends on the lines around it",
        LINES,
        "        or _has_long_line(chunk)\n",
        "",
        ("test_tabulate.py::test_what_a_line_is_does_not_depend_on_where_a_chunk_begins",),
    ),
    Mutant(
        "a damaged line takes its neighbour along",
        "one line is two records, or none where there was one",
        LINES,
        "        if found is None:\n",
        "        if found is None and malformed:\n",
        (SAFE,),
    ),
    Mutant(
        "the records of a chunk are kept beside the release",
        "records stay on a disk that nobody looks at",
        CURATOR,
        "        draft = ledger.draft(key)\n",
        "        draft = ledger.draft(key)\n"
        "        np.save('.exact.npy', np.concatenate([own.ravel() for own in tables.values()]))\n",
        (
            HIDDEN,
            "test_non_interference_processes.py::"
            "test_a_release_killed_before_any_call_leaves_nothing_of_the_data[rows-5]",
        ),
    ),
    Mutant(
        "a file without records is not read a second time",
        "whoever watches which files are opened learns whether there is anybody",
        CURATOR,
        "        draft = ledger.draft(key)\n",
        "        draft = ledger.draft(key)\n"
        "        if not any(own.any() for own in tables.values()):\n"
        "            data.read_bytes()\n",
        (HIDDEN,),
    ),
    Mutant(
        "RAP's total is what was counted",
        "the number of records is published",
        ADAPTIVE,
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
        TABULATE,
        '        except OSError:\n            pass\n    raise DataError(f"{path} is not',
        "        except OSError as error:\n"
        "            raise DataError(str(error)) from None\n"
        '    raise DataError(f"{path} is not',
        ("test_non_interference_failures.py::test_a_file_that_may_not_be_read_is_refused",),
    ),
    Mutant(
        "a first line that is no header is shown",
        "a file without a header shows its first record",
        TABULATE,
        '    raise DataError(\n        f"{path}: the first line is',
        '    raise DataError(\n        f"{path}: {line!r}: the first line is',
        (
            "test_non_interference_failures.py::"
            "test_every_file_without_a_header_is_refused_in_the_same_words",
            "test_fuzz_csv.py::test_any_header_is_read_or_refused_without_being_shown",
        ),
    ),
    Mutant(
        "a record that is damaged ends the run",
        "whether there is such a record is published",
        LINES,
        "            malformed += 1\n",
        "            raise ValueError\n",
        ("test_fuzz_csv.py::test_no_bytes_below_a_good_header_make_a_release_fail",),
    ),
)

# The ledger and the order of a release.
LEDGERED = (
    Mutant(
        "the charge comes after the draw",
        "a run that fails in between has cost nothing",
        CURATOR,
        "        ledger.reserve(\n"
        "            dataset,\n"
        "            key=key,\n"
        "            units=units,\n"
        "            native={guarantee.kind: str(guarantee.amount)},\n"
        '            details={"version": query.spec.dataset.version, '
        '"release": query.release},\n'
        "        )\n"
        "        tables = tabulate(\n"
        "            data,\n"
        "            spec=query.spec,\n"
        "            subsets=subsets,\n"
        "            classes=query.compiled.classes,\n"
        '            progress=lambda share: progress(f"reading the data: {share:.0%}"),\n'
        "        )\n",
        "        tables = tabulate(\n"
        "            data,\n"
        "            spec=query.spec,\n"
        "            subsets=subsets,\n"
        "            classes=query.compiled.classes,\n"
        '            progress=lambda share: progress(f"reading the data: {share:.0%}"),\n'
        "        )\n"
        "        ledger.reserve(\n"
        "            dataset,\n"
        "            key=key,\n"
        "            units=units,\n"
        "            native={guarantee.kind: str(guarantee.amount)},\n"
        '            details={"version": query.spec.dataset.version, '
        '"release": query.release},\n'
        "        )\n",
        (
            "test_adaptive.py::test_the_charge_is_durable_before_the_data_is_read",
            "test_release_protocol.py::test_a_run_killed_at_any_moment_is_completed_by_the_next"
            "_and_charged_once[after the charge]",
            "audit:lattice",
        ),
    ),
    Mutant(
        "a refusal comes after the header is read",
        "whether a release can be paid for depends on the file",
        CURATOR,
        "    with ledger.hold(key):\n",
        "    check_header(data, query.spec)\n    with ledger.hold(key):\n",
        (
            "test_bad_input.py::test_a_release_past_the_budget_is_refused_before_the_data_are_opened",
            "test_release_protocol.py::test_the_same_release_needs_neither_the_data_nor_money",
        ),
    ),
    Mutant(
        "the header is not looked at before the charge",
        "a file without the columns costs a charge",
        CURATOR,
        "        check_header(data, query.spec)\n",
        "",
        (
            "test_bad_input.py::"
            "test_a_file_without_the_declared_columns_is_refused_before_anything_is_charged",
        ),
    ),
    Mutant(
        "tables too large are found after the charge",
        "a refused release costs a charge",
        CURATOR,
        "        check_size(subsets, query.compiled.workload.shape_of_domain)\n",
        "",
        (
            "test_bad_input.py::test_tables_too_large_to_count_are_refused_before_anything_is_charged",
        ),
    ),
    Mutant(
        "a release makes the ledger that it does not find",
        "removing the ledger gives the whole budget back",
        "pipeline.py",
        "    with Ledger.open(ledger_path, create=False) as ledger:",
        "    with Ledger.open(ledger_path, create=True) as ledger:",
        ("test_bad_input.py::test_release_never_makes_a_ledger",),
    ),
    Mutant(
        "the cap is not looked at",
        "the budget is not limited",
        CHECKS,
        "own is not None and units > own.remaining]",
        "own is not None and units > own.cap.units]",
        ("test_ledger.py::test_ten_tenths_fit_and_one_unit_more_does_not",),
    ),
    Mutant(
        "the cap is passed by one unit",
        "the budget can be passed",
        CHECKS,
        "own is not None and units > own.remaining]",
        "own is not None and units > own.remaining + 1]",
        ("test_ledger.py::test_ten_tenths_fit_and_one_unit_more_does_not",),
    ),
    Mutant(
        "a charge may be nothing",
        "noise is drawn for free",
        CHECKS,
        "    if units <= 0:",
        "    if units < 0:",
        ("test_ledger.py::test_steps_out_of_order_are_programming_errors",),
    ),
    Mutant(
        "the cap is looked at outside the transaction that charges",
        "processes that race pass the cap together",
        LEDGER,
        "            entry = admitted(state, dataset, key=key, units=units, "
        "ledger=self._store.path)\n            if entry is None:\n",
        "            entry = state.entries.get(key)\n            if entry is None:\n",
        ("test_ledger.py::test_racing_processes_never_pass_the_cap",),
    ),
    Mutant(
        "transactions begin with a read",
        "processes that race pass the cap together, or fail",
        STORE,
        'self._database.execute("BEGIN IMMEDIATE")',
        'self._database.execute("BEGIN DEFERRED")',
        ("test_ledger.py::test_racing_processes_never_pass_the_cap",),
    ),
    Mutant(
        "another release of the same cost is taken for a retry",
        "fresh noise is drawn at no charge",
        CHECKS,
        "    entry = state.entries.get(key)\n",
        "    entry = state.entries.get(key) or next(iter(state.entries.values()), None)\n",
        ("test_release_protocol.py::test_another_release_number_draws_fresh_noise_and_pays",),
    ),
    Mutant(
        "a key may change its charge",
        "a dear release goes on as a cheap one",
        CHECKS,
        "    if (entry.dataset, entry.units) != (dataset, units):",
        "    if entry.dataset != dataset:",
        ("test_ledger.py::test_a_key_is_bound_to_its_dataset_and_charge",),
    ),
    Mutant(
        "runs are begun without end",
        "a run that fails by what it drew can be repeated until it does not",
        CHECKS,
        "entry.retries >= RETRIES:",
        "entry.retries >= 10 * RETRIES:",
        ("test_ledger.py::test_a_retry_is_free_three_times_and_then_refused_until_abandoned",),
    ),
    Mutant(
        "a run given up is refunded",
        "noise that was drawn has cost nothing",
        EVENTS,
        '            entry = replace(entry, state="abandoned")\n',
        '            entry = replace(entry, state="abandoned")\n'
        "            account = self.accounts[entry.dataset]\n"
        "            self.accounts[entry.dataset] = replace(\n"
        "                account, spent=account.spent - entry.units\n"
        "            )\n",
        ("test_ledger.py::test_a_retry_is_free_three_times_and_then_refused_until_abandoned",),
    ),
    Mutant(
        "a run that fails is refunded",
        "noise can be drawn until it pleases",
        LEDGER,
        "            self._held.discard(key)\n",
        "            self._held.discard(key)\n"
        "            with self._store.writing() as state:\n"
        "                entry = state.entries.get(key)\n"
        '                if entry is not None and entry.state == "reserved":\n'
        '                    self._store.append(state, "abandon", {"key": key})\n',
        (
            "test_adaptive.py::test_a_run_whose_projection_fails_goes_on_from_its_round_at_no_charge",
        ),
    ),
    Mutant(
        "a committed measurement is drawn again",
        "two draws at the price of one",
        LEDGER,
        '        if entry.state == "committed":\n'
        "            return self._stored(entry)\n"
        "        file",
        "        file",
        ("test_ledger.py::test_steps_out_of_order_are_programming_errors",),
    ),
    Mutant(
        "twins do not wait for each other",
        "which of two draws is kept depends on what was drawn",
        FILES,
        "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        os.fstat(descriptor)\n",
        ("test_ledger.py::test_a_held_key_makes_others_wait_and_then_give_up",),
    ),
    Mutant(
        "a step needs no hold",
        "twins draw twice",
        LEDGER,
        "        if key not in self._held:",
        "        if not key:",
        ("test_ledger.py::test_steps_out_of_order_are_programming_errors",),
    ),
    Mutant(
        "commits are not on disk when they return",
        "a power cut gives budget back",
        STORE,
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
        ("test_ledger.py::test_the_charge_is_durable_before_the_measurement_exists",),
    ),
    Mutant(
        "a large measurement is not on disk before its event",
        "a power cut leaves a commit without its measurement",
        FILES,
        "                os.fsync(file.fileno())\n",
        "",
        ("test_ledger_storage.py::test_a_large_file_and_its_name_are_durable_before_the_commit",),
    ),
    Mutant(
        "the name of a large measurement is not on disk before its event",
        "a power cut leaves a commit without its measurement",
        FILES,
        "        self._pending.replace(self._final)\n        sync_path(self._folder)\n",
        "        self._pending.replace(self._final)\n",
        ("test_ledger_storage.py::test_a_large_file_and_its_name_are_durable_before_the_commit",),
    ),
    Mutant(
        "what a killed run drew is kept for the next",
        "noise that was seen can be taken up, or left",
        LEDGER,
        "                self._file(entry).remove()\n                self._store",
        "                self._store",
        (
            "test_ledger_storage.py::test_an_uncommitted_draw_is_removed_when_its_run_is_begun_again",
        ),
    ),
    Mutant(
        "the chain is not verified",
        "a charge can be edited away",
        EVENTS,
        "        sound = expected == Head(seq, stored)",
        "        sound = expected.seq == seq",
        ("test_ledger_storage.py::test_tampering_is_found_at_the_event",),
    ),
    Mutant(
        "the chain does not cover what went before",
        "an event can be edited where its own hash is too",
        EVENTS,
        '    covered = f"{previous.hash}\\n{seq}\\n{text}"',
        '    covered = f"{seq}\\n{text}"',
        (
            "test_ledger_storage.py::"
            "test_an_event_rewritten_with_its_own_hash_breaks_the_chain_after_it",
        ),
    ),
    Mutant(
        "events cut off the end are not missed",
        "the last charges can be taken back",
        STORE,
        "        if counted > state.head.seq or not kept <= commits:",
        "        if not kept <= commits:",
        ("test_ledger_tamper.py::test_every_event_taken_out_swapped_doubled_or_put_in_is_found",),
    ),
    Mutant(
        "a measurement without its event is not missed",
        "a release can be made of what the ledger does not count",
        STORE,
        "        if counted > state.head.seq or not kept <= commits:",
        "        if counted > state.head.seq:",
        ("test_ledger_tamper.py::test_a_measurement_without_its_event_is_found",),
    ),
    Mutant(
        "events can be deleted",
        "a charge is taken back by one statement",
        STORE,
        "CREATE TRIGGER events_stay BEFORE DELETE ON events "
        "BEGIN SELECT RAISE(ABORT, 'append only'); END;\n",
        "",
        ("test_ledger_storage.py::test_rows_can_only_be_added",),
    ),
    Mutant(
        "measurements can be changed",
        "a release can be bent after the fact",
        STORE,
        "CREATE TRIGGER measurements_keep BEFORE UPDATE ON measurements\n"
        "    BEGIN SELECT RAISE(ABORT, 'append only'); END;\n",
        "",
        ("test_ledger_storage.py::test_rows_can_only_be_added",),
    ),
    Mutant(
        "a stored measurement is not held against its hash",
        "a release can be bent after the fact",
        LEDGER,
        "        if hashlib.sha256(payload).hexdigest() != entry.sha256 or entry.account is None:",
        "        if entry.account is None:",
        ("test_ledger_storage.py::test_a_changed_or_lost_measurement_is_found",),
    ),
    Mutant(
        "an older copy of the ledger passes for the ledger",
        "restoring a backup gives budget back",
        "measurement/ledger_witness.py",
        "        if events[named.seq - 1].head == named:",
        "        if events[named.seq - 1]:",
        (
            "test_ledger_storage.py::test_an_older_copy_is_found_by_the_releases_it_has_lost",
            "test_ledger_witness.py::test_two_copies_that_were_both_charged_are_told_by_their_releases",
        ),
    ),
    Mutant(
        "a ledger that others can write to is used",
        "anybody gives budget back",
        FILES,
        "found.st_mode & 0o022:",
        "found.st_mode & 0o002:",
        ("test_ledger_storage.py::test_a_ledger_that_others_could_change_is_refused",),
    ),
    Mutant(
        "a ledger of another user is used",
        "its owner gives budget back",
        FILES,
        "    if found.st_uid != os.geteuid() or",
        "    if",
        ("test_ledger_storage.py::test_a_ledger_of_another_user_is_refused",),
    ),
    Mutant(
        "a new ledger can be read by all",
        "who reads it sees every release before it is made public",
        STORE,
        "os.O_NOFOLLOW, 0o600))",
        "os.O_NOFOLLOW, 0o644))",
        ("test_ledger_storage.py::test_a_new_ledger_and_its_folders_are_private",),
    ),
    Mutant(
        "the ledger's folder can be entered by all",
        "who may enter it may find what is written there",
        FILES,
        "part.mkdir(mode=0o700,",
        "part.mkdir(mode=0o755,",
        ("test_ledger_storage.py::test_a_new_ledger_and_its_folders_are_private",),
    ),
    Mutant(
        "network file systems are let through",
        "locks do not hold there, and processes pass the cap together",
        FILES,
        "    if _is_network(mounted :=",
        "    if not (mounted :=",
        ("test_ledger_storage.py::test_a_network_file_system_is_refused",),
    ),
    Mutant(
        "the ledger may be a link",
        "it is swapped for another one by its folder's owner",
        FILES,
        "_check_own(path, path.lstat(),",
        "_check_own(path, path.stat(),",
        ("test_ledger_storage.py::test_a_link_is_not_followed",),
    ),
    Mutant(
        "a ledger may have two names",
        "each name has a log of its own, and one charges what the other does not see",
        FILES,
        "found.st_nlink > 1:",
        "found.st_nlink > 9:",
        ("test_ledger_storage.py::test_a_second_name_of_the_ledger_is_refused_under_both",),
    ),
    Mutant(
        "the log beside the ledger is not looked at",
        "whoever can write to it gives budget back",
        FILES,
        '    "-wal": stat.S_ISREG,\n',
        "",
        (
            "test_ledger_storage.py::"
            "test_working_files_that_others_could_change_or_that_are_links_are_refused[-wal]",
        ),
    ),
    Mutant(
        "a ledger is made on a network file system, and refused there afterwards",
        "an empty ledger is left where it cannot be kept",
        STORE,
        "        check_local(path)\n        if create and not path.exists():\n"
        "            _create(path)\n",
        "        if create and not path.exists():\n            _create(path)\n"
        "        check_local(path)\n",
        ("test_ledger_storage.py::test_a_ledger_cannot_be_made_on_a_network_file_system",),
    ),
    Mutant(
        "a new ledger is written through its log",
        "made on a full disk it is an empty file that nobody can use",
        STORE,
        "PRAGMA synchronous = EXTRA;\n",
        "PRAGMA journal_mode = WAL;\n",
        (
            "test_ledger_storage.py::"
            "test_a_new_ledger_is_whole_in_its_file_before_its_log_is_closed",
        ),
    ),
    Mutant(
        "events are not counted",
        "the last charges can be taken back",
        STORE,
        "PRAGMA user_version = {event.head.seq:d}",
        "PRAGMA user_version",
        ("test_ledger_tamper.py::test_every_event_taken_out_swapped_doubled_or_put_in_is_found",),
    ),
    Mutant(
        "any text is an event if its hash is sound",
        "what is shown, or charged, is not what is hashed",
        EVENTS,
        "    if _text(kind=kind, day=day, fields=fields) != text:",
        "    if not text:",
        ("test_ledger_tamper.py::test_a_hostile_event_with_a_sound_hash_is_a_damaged_ledger",),
    ),
    Mutant(
        "a release that the ledger does not know gives way",
        "the one witness of what an older copy does not count is gone",
        "pipeline.py",
        "        ledger.check_replaced(out)\n",
        "",
        (
            "test_ledger_witness.py::test_a_release_that_the_ledger_does_not_know_is_never_replaced",
            "test_ledger_witness.py::test_a_ledger_made_anew_does_not_replace_what_the_lost_one_paid_for",
        ),
    ),
    Mutant(
        "a twin is told that it was charged",
        "whoever adds up what was said finds more than the ledger",
        LEDGER,
        "entry.source, stored=True)",
        "entry.source, stored=False)",
        ("test_ledger_races.py::test_six_twins_are_one_charge_and_the_same_bytes",),
    ),
    Mutant(
        "events know the time of day",
        "how long a run took tells of the data",
        STORE,
        "datetime.now(UTC).date().isoformat()",
        "datetime.now(UTC).isoformat()",
        ("test_ledger.py::test_the_export_holds_public_facts_and_no_time_of_day",),
    ),
    Mutant(
        "a dataset takes another cap when it is planned again",
        "editing the spec gives budget back",
        CAPS,
        "    if kept == wanted:\n        return\n    if _names",
        "    if kept != wanted and kept.currency == wanted.currency:\n"
        '        yield "change-cap", cap_fields(name, wanted)\n'
        "        return\n"
        "    if kept == wanted:\n        return\n    if _names",
        (
            "test_bad_input.py::"
            "test_a_cap_changed_in_the_spec_is_refused_until_it_is_changed_on_record",
        ),
    ),
    Mutant(
        "a cap on record changes its currency after charges",
        "a sum of unlike currencies bounds nothing",
        CAPS,
        "    if account.spent and not (",
        "    if not account and not (",
        ("test_ledger.py::test_a_cap_is_changed_on_record_and_in_its_currency_only",),
    ),
    Mutant(
        "a changed cap forgets what was spent",
        "changing the cap gives budget back",
        EVENTS,
        "replace(self.accounts[dataset], cap=cap)",
        "Account(dataset, cap)",
        ("test_ledger.py::test_a_cap_is_changed_on_record_and_in_its_currency_only",),
    ),
    Mutant(
        "rows and persons are charged to one account",
        "losses of unlike units do not add up",
        CHECKS,
        "    if kept.unit != unit:",
        "    if not kept.unit:",
        ("test_ledger.py::test_charges_for_different_units_are_never_added_up",),
    ),
    Mutant(
        "a parent is not charged",
        "every dataset of the same people has a budget of its own",
        EVENTS,
        "        for account in (own, self.parent_of(own)):",
        "        for account in (own,):",
        ("test_ledger_parent.py::test_every_charge_of_a_dataset_is_its_parents_too_in_one_event",),
    ),
    Mutant(
        "a parent's cap is not looked at",
        "all datasets of the same people together pass the cap",
        CHECKS,
        "for own in (account, parent) if own",
        "for own in (account,) if own",
        ("test_ledger_parent.py::test_the_message_names_the_cap_that_refuses_and_what_remains",),
    ),
    Mutant(
        "a dataset brings nothing of what it spent to its parent",
        "what was spent before is spent again on the same people",
        EVENTS,
        "replace(parent, spent=parent.spent + own.spent)",
        "replace(parent, spent=parent.spent)",
        (
            "test_ledger_parent.py::test_a_dataset_charged_before_brings_what_it_spent_to_its_parent",
        ),
    ),
    Mutant(
        "a spec that names a parent is charged without it",
        "every dataset of the same people has a budget of its own",
        CHECKS,
        "    if parent is not None and account.parent != parent:",
        "    if parent is not None and not account:",
        ("test_ledger_parent.py::test_a_spec_that_names_a_parent_is_not_charged_without_it",),
    ),
    Mutant(
        "a dataset leaves its parent when its spec does not name it",
        "editing the spec gives budget back",
        CAPS,
        "    if account.parent is not None:\n        named",
        "    if account.parent is not None and wanted is not None:\n        named",
        (
            "test_ledger_parent.py::test_registering_again_changes_nothing_and_any_difference_is_a_conflict",
        ),
    ),
    Mutant(
        "a charge that leaves the parent out is taken from the chain",
        "an event can be written that charges one account of two",
        EVENTS,
        '        if event.fields.get("parent") != own.parent:',
        '        if "parents" in event.fields:',
        (
            "test_ledger_parent.py::test_a_sound_hash_over_a_charge_that_leaves_the_parent_out_is_found",
        ),
    ),
    Mutant(
        "only the parent's cap is looked at",
        "a dataset spends more than its own cap",
        CHECKS,
        "for own in (account, parent) if own",
        "for own in (parent or account,) if own",
        ("test_ledger_parent.py::test_the_message_names_the_cap_that_refuses_and_what_remains",),
    ),
    Mutant(
        "a dataset and its parent protect unlike units",
        "losses of rows and of persons are added up, which bounds nothing",
        CAPS,
        "(kind_of(parent.cap.unit), kind_of(account.cap.unit)),",
        "(kind_of(account.cap.unit), kind_of(account.cap.unit)),",
        (
            "test_ledger_parent.py::"
            "test_a_dataset_and_its_parent_are_charged_in_one_currency_for_one_kind_of_unit",
        ),
    ),
    Mutant(
        "a dataset and its parent are kept in unlike currencies",
        "an epsilon is added to a sum of rho",
        CAPS,
        "(parent.cap.currency, account.cap.currency),",
        "(account.cap.currency, account.cap.currency),",
        (
            "test_ledger_parent.py::"
            "test_a_dataset_and_its_parent_are_charged_in_one_currency_for_one_kind_of_unit",
        ),
    ),
    Mutant(
        "a dataset comes under a parent that has no room for what it spent",
        "more than the parent's cap is spent",
        CAPS,
        "    if account.spent > max(0, parent.remaining):",
        "    if False:",
        (
            "test_ledger_parent.py::"
            "test_a_dataset_that_spent_more_than_its_parent_has_left_does_not_come_under_it",
        ),
    ),
    Mutant(
        "a plan does not look at the parent's cap",
        "a release is called affordable that will be refused",
        "planning/figures.py",
        "    return units / min(cap.units for cap in caps)",
        "    return units / caps[0].units",
        ("test_ledger_parent.py::test_a_plan_says_what_a_release_takes_of_the_smaller_cap",),
    ),
    Mutant(
        "a ledger of two names is used",
        "SQLite keeps two logs of it, and each has lost the other's charges",
        FILES,
        "    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:",
        "    if stat.S_ISREG(found.st_mode) and not found.st_nlink:",
        ("test_ledger_storage.py::test_a_second_name_of_the_ledger_is_refused_under_both",),
    ),
    Mutant(
        "the files beside the ledger may be anybody's",
        "a write-ahead log of another user gives budget back",
        FILES,
        "            _check_own(beside, beside.lstat(), kind=kind)\n",
        "            beside.lstat()\n",
        (
            "test_ledger_storage.py::"
            "test_working_files_that_others_could_change_or_that_are_links_are_refused",
        ),
    ),
    Mutant(
        "the parts of an unfinished run are taken without their seal",
        "parts of another run are continued, and what was drawn is drawn again",
        "measurement/ledger_draft.py",
        "if len(values) % 8 or seal != self._sealing(file, values):",
        "if len(values) % 8:",
        (
            "test_adaptive.py::"
            "test_a_run_whose_parts_were_damaged_says_so_draws_nothing_and_can_be_given_up",
        ),
    ),
    Mutant(
        "the text of SQLite's errors travels on",
        "an error says what is in the ledger",
        STORE,
        "    raise failure from None",
        "    raise failure",
        ("test_ledger_storage.py::test_what_is_not_a_ledger_is_refused_in_our_words",),
    ),
)

# What names a measurement.
KEYED = (
    Mutant(
        "the key leaves the release number out",
        "a new release is given the old noise and called fresh",
        QUESTIONS,
        "        mechanism,\n        release,\n",
        "        mechanism,\n",
        ("test_adaptive.py::test_every_public_parameter_is_in_the_key",),
    ),
    Mutant(
        "the key leaves the mechanism out",
        "a release at one epsilon is given the noise of another",
        QUESTIONS,
        "        mechanism,\n        release,\n",
        "        release,\n",
        ("test_adaptive.py::test_every_public_parameter_is_in_the_key",),
    ),
    Mutant(
        "the key leaves the dataset out",
        "one dataset is given the measurement of another",
        QUESTIONS,
        "        spec.dataset,\n",
        "",
        ("test_adaptive.py::test_every_public_parameter_is_in_the_key",),
    ),
    Mutant(
        "the key leaves the classes out",
        "tables of other classes are given this measurement",
        QUESTIONS,
        '        digest.update(np.ascontiguousarray(classes, dtype="<i8").tobytes() + b";")',
        '        digest.update(b";")',
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the protected unit out",
        "a release for persons is given the noise of one for rows",
        QUESTIONS,
        "        (spec.privacy.person, spec.privacy.max_rows, spec.privacy.neighbours),\n",
        "",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the strategy's weights out",
        "answers are computed from noisy values of another strategy",
        QUESTIONS,
        "repr((weight, block.attributes, block.terms))",
        "repr((block.attributes, block.terms))",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the measured factors out",
        "answers are computed from noisy values of another strategy",
        QUESTIONS,
        "        digest.update(repr(factor.key).encode())",
        "        digest.update(repr(factor.shape).encode())",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
    Mutant(
        "the key leaves the coding of columns out",
        "a record that means something else is given this measurement",
        QUESTIONS,
        "return column.name, kind.values if isinstance(kind, Categorical) else kind, column.other",
        "return column.name, (), column.other",
        ("test_curator.py::test_all_that_is_public_of_a_linear_release_is_in_its_key",),
    ),
)

# Relaxed adaptive projection.
BRUTE = "test_disjoint.py::test_the_bound_holds_for_every_neighbour_by_brute_force"
RAPPED = (
    Mutant(
        "selection is paid for one query a round",
        "all further queries of a round are chosen for free",
        RAP,
        "    square = 8 * rho / (selected * span**2) * (1 << 2 * _RATE_BITS)",
        "    square = 8 * rho / (span**2) * (1 << 2 * _RATE_BITS)",
        ("test_adaptive.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",),
    ),
    Mutant(
        "selection is twice as sharp as it is paid for",
        "choosing queries costs four times its share",
        RAP,
        "    square = 8 * rho / ",
        "    square = 32 * rho / ",
        (
            "test_adaptive.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",
            "audit:rap",
        ),
    ),
    Mutant(
        "two-sided selection is paid for as one-sided",
        "choosing queries costs four times its share where records are replaced",
        RAP,
        "    span = records * (2 if replace else 1)\n",
        "    span = records\n",
        ("test_adaptive.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",),
    ),
    Mutant(
        "queries are drawn on one side where records are replaced",
        "counts move both ways there, and choosing costs four times its share",
        RAP,
        "        if self.replace:\n",
        "        if self.replace and not size:\n",
        ("test_adaptive.py::test_a_quarter_is_drawn_among_counts_too_high_where_that_is_sharper",),
    ),
    Mutant(
        "selection and measurement each spend the whole round",
        "a run costs more than it is charged",
        RAP,
        "        measurement_rho=round_rho - selection_rho,\n",
        "        measurement_rho=round_rho,\n",
        ("test_adaptive.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",),
    ),
    Mutant(
        "the rounds share what the total has spent",
        "a run costs more than it is charged",
        RAP,
        "guarantee.amount * (1 - share) / settings.rounds",
        "guarantee.amount / settings.rounds",
        ("test_adaptive.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",),
    ),
    Mutant(
        "the total is measured without noise",
        "the exact number of records is published",
        ADAPTIVE,
        "    return chance.add_noise(\n        np.array([counted << GRID_BITS]),\n"
        "        budget=mechanism.budget(mechanism.total_rho),\n"
        "        sensitivity=mechanism.total_sensitivity,\n"
        "        scale=mechanism.total_scale,\n    )\n",
        "    return np.array([counted << GRID_BITS])\n",
        (
            "test_adaptive.py::test_nothing_but_noisy_values_reaches_the_projection_the_ledger_or_the_screen",
            "audit:rap",
        ),
    ),
    Mutant(
        "the total's noise hides one row of a person",
        "a person of several rows shows in the total",
        RAP,
        "        return self.records**2 << 2 * GRID_BITS",
        "        return 1 << 2 * GRID_BITS",
        ("test_adaptive.py::test_a_person_pays_for_all_rows",),
    ),
    Mutant(
        "a declared number of rows is the total where rows are added or removed",
        "the exact number of records, which is private there, is published",
        RAP,
        "if rows is not None and rows.exact and replace else None",
        "if rows is not None and rows.exact else None",
        (
            "test_adaptive.py::"
            "test_a_total_is_measured_unless_records_are_replaced_and_their_number_is_declared",
        ),
    ),
    Mutant(
        "a record replaced moves one count of a family",
        "the count that it moves to is not paid for",
        DISJOINT,
        "min(size, 2 if replace else 1)",
        "min(size, 1)",
        (BRUTE,),
    ),
    Mutant(
        "a person's rows count once in a round",
        "a person of several rows is protected as one row is",
        DISJOINT,
        "    return records**2 * sum(",
        "    return records * sum(",
        (BRUTE,),
    ),
    Mutant(
        "queries that share records pass for disjoint",
        "a record moves more counts than are paid for",
        DISJOINT,
        "(clashes[own, :own] > slack[own] + slack[:own])",
        "(clashes[own, :own] >= slack[own] + slack[:own])",
        (BRUTE,),
    ),
    Mutant(
        "queries that share a code pass for disjoint",
        "a record moves more counts than are paid for",
        DISJOINT,
        "        apart = matrix @ matrix.T == 0\n",
        "        apart = matrix @ matrix.T < matrix.sum(axis=1)\n",
        (BRUTE,),
    ),
    Mutant(
        "a query joins a family of which it is disjoint with one",
        "a record moves more counts than are paid for",
        DISJOINT,
        "np.flatnonzero(met == np.array(sizes))",
        "np.flatnonzero(met > 0)",
        (BRUTE,),
    ),
    Mutant(
        "all queries at once are priced as one replaced record moves one cell",
        "the count that a record moves to is not paid for",
        RAP,
        "    return min(2 * answered, workload.shape[0]) if replace else answered",
        "    return answered",
        ("test_disjoint.py::test_the_bound_for_all_queries_at_once_holds_for_every_neighbour",),
    ),
    Mutant(
        "rounds that were measured are drawn again",
        "a run that fails by what it drew can be repeated until it does not",
        ADAPTIVE,
        "            done=measured.rounds,\n",
        "            done=(),\n",
        (
            "test_adaptive.py::"
            "test_a_run_whose_projection_fails_goes_on_from_its_round_at_no_charge",
        ),
    ),
    Mutant(
        "the total is drawn again by a run that goes on",
        "two totals at the price of one",
        ADAPTIVE,
        "        if not parts:\n",
        "        if not parts[1:]:\n",
        ("test_adaptive.py::test_a_run_that_fails_four_times_is_given_up_and_leaves_no_parts",),
    ),
    Mutant(
        "a round is durable only at the end of the run",
        "a run that fails by what it drew can be repeated until it does not",
        ADAPTIVE,
        "            draft.append(parts[-1])\n",
        "",
        (
            "test_adaptive.py::"
            "test_a_run_whose_projection_fails_goes_on_from_its_round_at_no_charge",
        ),
    ),
    Mutant(
        "the public side is told true counts",
        "everything that is fitted to them tells of the data",
        ADAPTIVE,
        "    return Round(places, noisy / STEPS, scale / STEPS)",
        "    return Round(places, exact / 1.0, scale / STEPS)",
        ("test_adaptive.py::test_the_noise_of_a_round_is_as_wide_as_it_is_said_to_be",),
    ),
    Mutant(
        "the noise of a round is for one of its queries",
        "all further queries of a round are measured for free",
        ADAPTIVE,
        "    exact = _answered(answers, places)\n"
        "    move = mechanism.sensitivity(workload, places)\n",
        "    exact = _answered(answers, places)\n"
        "    move = mechanism.sensitivity(workload, places[:1])\n",
        (
            "test_adaptive.py::test_every_round_is_drawn_at_the_scale_of_all_its_queries",
            "audit:rap",
        ),
    ),
    Mutant(
        "selection is seeded",
        "which query was chosen for its error can be worked out",
        SELECTION,
        "        random, u, bits = SlowSampler(self.entropy), 0, 0\n",
        '        random, u, bits = SlowSampler(lambda size: b"\\x55" * size), 0, 0\n',
        (
            "test_selection.py::"
            "test_selections_follow_the_law_of_one_exponential_mechanism_after_another",
        ),
    ),
    Mutant(
        "the worst query is taken without chance",
        "selection has no privacy at all",
        SELECTION,
        "            level = chance.level(scores, members, rate)\n",
        "            level = max(k for k, own in enumerate(members) if own)\n",
        (
            "test_selection.py::"
            "test_selections_follow_the_law_of_one_exponential_mechanism_after_another",
        ),
    ),
    Mutant(
        "one side's scores move both ways",
        "choosing queries costs four times its share",
        SELECTION,
        'np.maximum(differences if side == "under" else -differences, 0)',
        "np.abs(differences)",
        ("test_selection.py::test_draws_on_two_sides_follow_the_scores_of_each_and_never_meet",),
    ),
    Mutant(
        "scores are rounded up in the enclosure of a weight",
        "the leading bits decide for a level that the law does not have there",
        SELECTION,
        "    return max(0, int(scaled) - 1)",
        "    return max(0, int(scaled) + 1)",
        ("test_selection.py::test_the_enclosure_of_a_weight_holds_its_exponential",),
    ),
    Mutant(
        "a draw that is open is closed by a guess",
        "the law is off at every bound",
        SELECTION,
        "    if chosen and highs[chosen - 1] << bits > u * lows[-1]:\n        return None\n",
        "",
        ("test_selection.py::test_a_draw_that_its_first_bits_leave_open_goes_on_with_more",),
    ),
    Mutant(
        "a draw is half as sharp again as its rate",
        "the queries chosen tell twice what they are charged",
        SELECTION,
        "            found = _decided(u, bits, scores, members, rate)\n",
        "            found = _decided(u, bits, scores, members, rate * 3 / 2)\n",
        (
            "audit:rap",
            "test_selection.py::"
            "test_selections_follow_the_law_of_one_exponential_mechanism_after_another",
        ),
    ),
    Mutant(
        "queries of earlier rounds are selected again",
        "a run asks what its law has no room for",
        SELECTION,
        "    struck[taken[taken[:, 0] == block, 1]] = _TAKEN\n",
        "    struck[taken[:0, 1]] = _TAKEN\n",
        ("test_selection.py::test_queries_of_earlier_rounds_are_never_selected_again",),
    ),
    Mutant(
        "selection hides one row of a person",
        "the queries chosen tell of a person's other rows",
        RAP,
        "    span = records * (2 if replace else 1)\n",
        "    span = 2 if replace else 1\n",
        ("test_adaptive.py::test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction",),
    ),
    Mutant(
        "queries with entries of -1 pass for counts",
        "a record more moves some scores up and others down, at the price of one way",
        RAP,
        "    return whole and int(",
        "    return bool(whole) or int(",
        ("test_adaptive.py::test_queries_that_are_no_counts_are_refused_as_what_they_are",),
    ),
    Mutant(
        "half of the queries are drawn among counts too high, under the same tag",
        "a run that was begun by one rule goes on by another",
        RAP,
        "OVER = 4\n",
        "OVER = 2\n",
        ("test_adaptive.py::test_what_a_run_asks_or_commits_changes_only_with_the_tag_in_its_key",),
    ),
    Mutant(
        "the seal of a part does not name its file",
        "a part of another run is taken for one of this",
        "measurement/ledger_draft.py",
        '        named = f"{file.name} {len(values)} ".encode()\n',
        '        named = f"{len(values)} ".encode()\n',
        ("test_adaptive.py::test_a_part_of_another_run_or_of_another_place_is_refused",),
    ),
)

# What is shown, written and read by others.
SHOWN = (
    Mutant(
        "the text of an unforeseen error is shown",
        "it may hold a record",
        "cli/app.py",
        "internal error ({type(error).__name__})",
        "internal error ({type(error).__name__}: {error})",
        (
            "test_non_interference_failures.py::"
            "test_an_error_between_the_data_and_the_noise_says_nothing_of_the_data",
        ),
    ),
    Mutant(
        "an unforeseen error ends in a traceback",
        "it may hold a record",
        "cli/app.py",
        "    except Exception as error:\n        _fail(",
        "    except ArithmeticError as error:\n        _fail(",
        (
            "test_non_interference_failures.py::"
            "test_an_error_between_the_data_and_the_noise_says_nothing_of_the_data",
        ),
    ),
    Mutant(
        "a crash writes its memory to the disk",
        "all records that are held lie there",
        "cli/no_dumps.py",
        "    resource.setrlimit(resource.RLIMIT_CORE, (0, "
        "resource.getrlimit(resource.RLIMIT_CORE)[1]))\n",
        "    resource.getrlimit(resource.RLIMIT_CORE)\n",
        ("test_non_interference_failures.py::test_a_crash_leaves_no_core_dump",),
    ),
    Mutant(
        "progress goes to a pipe",
        "a log holds how far the data were read, and when",
        "cli/screen.py",
        "        yield lambda _: None\n",
        "        yield say\n",
        ("test_cli.py::test_no_progress_goes_to_a_pipe",),
    ),
    Mutant(
        "a pickled plan is run",
        "a plan is code of whoever wrote it",
        "strategy/json_values.py",
        '    """\n    if sum(map(content.count',
        '    """\n    import pickle\n'
        '    if content[:1] == b"\\x80":\n'
        "        return pickle.loads(content)\n"
        "    if sum(map(content.count",
        ("test_hostile_plans.py::test_neither_a_plan_nor_a_spec_is_ever_run",),
    ),
    Mutant(
        "a spec's tags are run",
        "a spec is code of whoever wrote it",
        "spec/source.py",
        "    return _Builder(file, problems).document(_events(text, file))\n",
        "    yaml.load(text, Loader=yaml.UnsafeLoader)\n"
        "    return _Builder(file, problems).document(_events(text, file))\n",
        ("test_hostile_plans.py::test_neither_a_plan_nor_a_spec_is_ever_run",),
    ),
    Mutant(
        "a spec's value lists are read from anywhere",
        "a release shows a file that it has no business with",
        "spec/parse.py",
        "target.resolve().is_relative_to(inside)",
        "target.parent.exists()",
        ("test_spec_mistakes.py::test_files_outside_the_folder_are_never_read",),
    ),
    Mutant(
        "a manifest's files are read from anywhere",
        "a report shows a file that it has no business with",
        "release/manifest_checks.py",
        'own.file == f"{own.name}.parquet" and ',
        "",
        ("test_release.py::test_a_damaged_manifest_is_told_apart",),
    ),
    Mutant(
        "standard errors are those of noise of half the variance",
        "every number seems better than it is",
        MECHANISM,
        "spread = math.sqrt(2) if",
        "spread = 1.0 if",
        ("test_mechanism.py::test_the_standard_deviation_that_is_stated_is_that_of_what_is_drawn",),
    ),
    Mutant(
        "intervals under Gaussian noise are one-sided quantiles",
        "they cover less often than they say",
        "reconstruction/intervals.py",
        "        return _times(std_errors, float(ndtri((1 + level) / 2)))",
        "        return _times(std_errors, float(ndtri(level)))",
        (
            "test_answer_span.py::"
            "test_noise_intervals_of_new_questions_cover_as_often_as_they_say[gaussian]",
        ),
    ),
    Mutant(
        "intervals under Laplace noise are one-sided quantiles",
        "they cover less often than they say",
        "reconstruction/intervals.py",
        "        return 2 * float(np.mean(ndtr(-q / spread))) - (1 - level)",
        "        return float(np.mean(ndtr(-q / spread))) - (1 - level)",
        ("test_intervals.py::test_the_quantile_is_never_narrow_and_at_most_1_1_percent_wide",),
    ),
    Mutant(
        "combinations with no estimate above zero have no row",
        "which rows are there tells of noise, and soon of data",
        "release/table.py",
        "        arrays = [\n            *(_by_table(",
        "        estimate = estimate[estimate > 0]\n        arrays = [\n            *(_by_table(",
        ("test_non_interference.py::test_every_combination_asked_for_has_a_row_whoever_is_in_it",),
    ),
    Mutant(
        "tables hold the statistics and metadata of another library",
        "what nobody looked at is published",
        "release/write.py",
        '    return {"dpquery": json.dumps(content, sort_keys=True, ensure_ascii=False)}',
        "    return {\n"
        '        "host": os.uname().nodename,\n'
        '        "dpquery": json.dumps(content, sort_keys=True, ensure_ascii=False),\n'
        "    }",
        ("test_non_interference.py::test_a_published_file_holds_no_metadata_but_its_own",),
    ),
    Mutant(
        "the manifest names the machine",
        "who made a release, and where, is published",
        "release/manifest.py",
        "        tool=dpquery.__version__,\n",
        "        tool=f\"{dpquery.__version__} on {__import__('os').getcwd()}\",\n",
        (
            "test_release_protocol.py::"
            "test_the_data_are_copied_elsewhere_and_nothing_of_either_place_is_published",
        ),
    ),
    Mutant(
        "questions that were not measured are answered",
        "an answer without a measurement behind it has a made-up error",
        "unanswerable.py",
        "for own in blocks if not supports(strategy, own)}",
        "for own in blocks if not strategy}",
        (
            "test_answer.py::"
            "test_every_question_that_the_measurements_do_not_hold_is_named_at_its_line",
        ),
    ),
    Mutant(
        "synthetic records can reach the data",
        "what they are made of need not be noisy",
        "release/synthetic.py",
        "from dpquery.measurement.codes import code_of\n",
        "from dpquery.measurement.codes import code_of\n"
        "from dpquery.measurement.tabulate import tabulate as tabulate\n",
        ("test_architecture.py::test_only_measurement_can_reach_the_data[release]",),
    ),
    Mutant(
        "the planner can reach the data",
        "which strategy is chosen tells of the data",
        "strategy/select.py",
        "from collections.abc import ",
        "import pandas as pandas\nfrom collections.abc import ",
        (
            "test_architecture.py::test_the_package_keeps_the_rule"
            "[strategy_and_reconstruction_cannot_open_data]",
        ),
    ),
)

# What the product stands on, and the process it runs in.
SUPPLIED = (
    Mutant(
        "versions are not checked before the charge",
        "a biased sampler is found out after the budget is spent, or not at all",
        CURATOR,
        "        check_libraries()\n",
        "",
        (
            "test_supply.py::test_a_version_not_to_be_trusted_ends_before_the_charge_and_before_the_data",
        ),
    ),
    Mutant(
        "a biased OpenDP is accepted",
        "noise of another law than the one that is charged for",
        "measurement/libraries.py",
        'Accepted("0.16.0", below="0.17")',
        'Accepted("0.14.0", below="0.17")',
        ("test_supply.py::test_the_bounds_checked_at_run_time_are_those_of_the_project",),
    ),
    Mutant(
        "a version before a release passes for the release",
        "code that nobody released draws the noise",
        "measurement/libraries.py",
        "    return numbers, 0 if ",
        "    return numbers, 1 if ",
        ("test_supply.py::test_versions_are_compared_as_numbers",),
    ),
    Mutant(
        "edited files pass the audit",
        "a library that was changed after its installation is not noticed",
        "audit/supply.py",
        "decode() == wanted.value",
        'decode() != ""',
        ("test_supply.py::test_a_changed_lost_added_or_shadowed_file_is_found",),
    ),
    Mutant(
        "a module from elsewhere passes the audit",
        "the files that are checked are not the ones that run",
        "audit/supply.py",
        "Path(spec.origin) not in hashed",
        "not Path(spec.origin).exists()",
        ("test_supply.py::test_a_changed_lost_added_or_shadowed_file_is_found",),
    ),
    Mutant(
        "a crash may leave a core dump",
        "all records, on disk",
        "cli/commands.py",
        "    forbid_dumps()\n",
        "",
        ("test_threats.py::test_row_33_a_crash_of_the_process_leaves_no_dump_and_no_values",),
    ),
    Mutant(
        "other processes may read the memory",
        "all records, to any program of the same user, and to one that the kernel hands dumps to",
        "cli/no_dumps.py",
        "        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)\n",
        "        ctypes.CDLL(None)\n",
        ("test_threats.py::test_row_33_no_other_process_of_the_user_may_read_the_memory",),
    ),
)

MUTANTS = (*DRAWN, *PRICED, *READ, *LEDGERED, *KEYED, *RAPPED, *SHOWN, *SUPPLIED)

CHEAPEST = (
    "one row is left without noise",
    "the bulk sampler's scale is 2 % too small",
    "a charge in epsilon is rounded down",
    "the first measurement is free",
    "the chain is not verified",
    "a person's id is not stripped of spaces",
)
"""Names of those that are planted every day."""
