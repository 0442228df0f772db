"""What a release draws."""

from mutation import Mutant

NOISE = (
    Mutant(
        "OpenDP's scale is 5 % too small",
        "every number is less private than what is charged",
        "_mechanism",
        "    return mechanism\n",
        "    return _built(budget.noise, 0.95 * scale)\n",
        ("test_noise.py::test_either_source_draws_at_the_very_scale", "audit:sampler"),
    ),
    Mutant(
        "OpenDP's scale is 5 % too large",
        "every number is worse than its stated error",
        "_mechanism",
        "    return mechanism\n",
        "    return _built(budget.noise, 1.05 * scale)\n",
        ("test_noise.py::test_either_source_draws_at_the_very_scale", "audit:sampler"),
    ),
    Mutant(
        "the bulk sampler's scale is 5 % too small",
        "every number is less private than what is charged",
        "draw",
        "BulkSampler(budget.law, scale)",
        "BulkSampler(budget.law, max(1.0, 0.95 * scale))",
        ("test_noise.py::test_either_source_draws_at_the_very_scale", "audit:sampler"),
    ),
    Mutant(
        "the bulk sampler's scale is 2 % too small",
        "every number is less private than what is charged, by less than a chart shows",
        "draw",
        "BulkSampler(budget.law, scale)",
        "BulkSampler(budget.law, max(1.0, 0.98 * scale))",
        ("test_noise.py::test_either_source_draws_at_the_very_scale",),
    ),
    Mutant(
        "true answers are returned",
        "nothing is private",
        "draw",
        "= add_noise(chunk)",
        "= chunk",
        ("test_noise.py::test_no_answer_comes_back_as_it_was", "audit:sampler"),
    ),
    Mutant(
        "one row is left without noise",
        "one true count is published",
        "draw",
        "noisy[start : start + chunk.size] = add_noise(chunk)",
        "noisy[start : start + chunk.size] = np.append(chunk[:1], add_noise(chunk)[1:])",
        ("test_noise.py::test_no_answer_comes_back_as_it_was", "audit:residuals"),
    ),
    Mutant(
        "OpenDP's noise is shared by all rows",
        "differences of answers are exact",
        "_measure",
        "np.asarray(mechanism(chunk), dtype=np.int64)",
        "chunk + (mechanism(chunk[:1])[0] - int(chunk[0]))",
        ("test_noise.py::test_big_vectors_are_drawn_in_chunks_with_fresh_noise", "audit:sampler"),
    ),
    Mutant(
        "the bulk sampler's noise is shared by all rows",
        "differences of answers are exact",
        "_saturated_sum",
        "    noise = sampler.sample(chunk.size)\n",
        "    noise = np.repeat(sampler.sample(1), chunk.size)\n",
        ("test_noise.py::test_big_vectors_are_drawn_in_chunks_with_fresh_noise", "audit:sampler"),
    ),
    Mutant(
        "every chunk has the noise of the first",
        "differences of answers of two chunks are exact",
        "draw",
        "        noisy[start : start + chunk.size] = add_noise(chunk)\n",
        "        if not start:\n"
        "            first_noise = add_noise(chunk) - chunk\n"
        "        noisy[start : start + chunk.size] = chunk + first_noise[: chunk.size]\n",
        ("test_noise.py::test_big_vectors_are_drawn_in_chunks_with_fresh_noise",),
    ),
    Mutant(
        "every second chunk has minus the noise of the one before it",
        "sums of answers of two chunks are exact",
        "draw",
        "        noisy[start : start + chunk.size] = add_noise(chunk)\n",
        "        if start // _CHUNK % 2 == 0:\n"
        "            drawn = add_noise(chunk) - chunk\n"
        "            noisy[start : start + chunk.size] = chunk + drawn\n"
        "        else:\n"
        "            noisy[start : start + chunk.size] = chunk - drawn[: chunk.size]\n",
        (
            "test_noise.py::test_big_vectors_are_drawn_in_chunks_with_fresh_noise",
            "audit:sampler",
        ),
    ),
    Mutant(
        "OpenDP's noise is cut off at six scales",
        "an answer beyond them is possible for one neighbour alone",
        "_mechanism",
        "    return mechanism\n",
        "    class Cut:\n"
        "        def __call__(self, chunk):\n"
        "            reach = int(6 * scale)\n"
        "            return np.clip(mechanism(chunk), chunk - reach, chunk + reach)\n"
        "    return Cut()\n",
        ("test_noise.py::test_noise_far_out_in_the_tail_is_added_as_it_was_drawn",),
    ),
    Mutant(
        "the bulk sampler's noise is cut off at six scales",
        "an answer beyond them is possible for one neighbour alone",
        "draw",
        "partial(_saturated_sum, BulkSampler(budget.law, scale))",
        "lambda chunk: chunk + np.clip(\n"
        "            BulkSampler(budget.law, scale).sample(chunk.size), -6 * scale, 6 * scale\n"
        "        ).astype(np.int64)",
        ("test_noise.py::test_noise_far_out_in_the_tail_is_added_as_it_was_drawn",),
    ),
    Mutant(
        "the scale is not held against the budget",
        "a scale from anywhere is drawn at",
        "draw",
        "if sensitivity <= 0 or noise_cost(budget.kind, sensitivity, scale) > budget.amount:",
        "if sensitivity <= 0:",
        ("test_noise.py::test_bulk_noise_is_held_against_the_budget_to_the_last_bit",),
    ),
    Mutant(
        "Gaussian noise is held against half its cost",
        "a scale smaller by a root of two is drawn at",
        "noise_cost",
        "sensitivity / (2 * exact**2)",
        "sensitivity / (4 * exact**2)",
        ("test_noise.py::test_bulk_noise_is_held_against_the_budget_to_the_last_bit",),
    ),
    Mutant(
        "the library's own privacy map is not asked",
        "a mistake of ours in the scale has no second look",
        "_mechanism",
        "    if not (0 < charged < math.inf and charged <= budget.amount):",
        "    if charged is None:",
        ("test_noise.py::test_the_library_too_must_agree_to_the_budget",),
    ),
    Mutant(
        "OpenDP counts in 32 bits",
        "noise is cut off at 2^31",
        "_built",
        'dp.atom_domain(T="i64")',
        "dp.atom_domain(T=int)",
        ("test_noise.py::test_two_draws_never_share_their_noise",),
    ),
    Mutant(
        "a version of OpenDP with a biased sampler is taken",
        "noise does not have its law",
        "Accepted.__contains__",
        "_order(version) >= _order(self.oldest)",
        "bool(_order(self.oldest))",
        ("test_noise.py::test_an_old_library_is_refused",),
    ),
    Mutant(
        "the text of OpenDP's errors travels on",
        "a true answer stands in a traceback",
        "_measure",
        '        pass\n    raise DpqueryError("the noise source failed; nothing was measured")',
        '        raise DpqueryError("the noise source failed; nothing was measured")',
        ("test_noise.py::test_a_failing_library_leaves_no_trace_of_values",),
    ),
    Mutant(
        "answers plus noise may wrap around",
        "a very large noise value gives the sign of the answer away",
        "_saturated_sum",
        "chunk + np.clip(noise, -LARGEST_ANSWER - chunk, LARGEST_ANSWER - chunk)",
        "chunk + noise",
        ("test_noise.py::test_bulk_noise_is_added_without_wrapping_around",),
    ),
    Mutant(
        "answers beyond 2^62 are measured",
        "an integer that wrapped around moves by more than the sensitivity",
        "draw",
        "    if answers.size and not _within_range(answers):",
        "    if answers.size < 0:",
        ("test_noise.py::test_an_answer_that_could_overflow_is_refused_without_showing_it",),
    ),
    Mutant(
        "float noise",
        "the low bits of a float give the true answer away",
        "_saturated_sum",
        "    noise = sampler.sample(chunk.size)\n",
        "    real = np.random.default_rng().laplace(0, 1 / float(sampler.law.rate), chunk.size)\n"
        "    noise = np.rint(real).astype(np.int64)\n",
        (
            "test_architecture.py::test_the_package_keeps_the_rule"
            "[only_one_module_makes_generators]",
            "audit:sampler",
        ),
    ),
    Mutant(
        "seeded noise in bulk",
        "who knows the seed subtracts the noise",
        "BulkSampler.__init__",
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
        "BulkSampler.__init__",
        "law: Law, scale: float, *, entropy: Entropy = os.urandom)",
        "law: Law, scale: float, *, entropy: Entropy = np.random.default_rng().bytes)",
        (
            "test_bulk_noise.py::test_the_product_draws_from_the_operating_system",
            "test_architecture.py::test_the_package_keeps_the_rule"
            "[only_one_module_makes_generators]",
        ),
    ),
    Mutant(
        "bulk noise leans to one side",
        "answers are biased, and one sign tells more than the other",
        "BulkSampler._write",
        "sign = (word >> kind(law.bits) & kind(1)).astype(np.int64)",
        "sign = (word >> kind(law.bits) & kind(1) & word).astype(np.int64)",
        ("test_bulk_noise.py::test_the_low_bits_are_fair_and_so_is_the_sign", "audit:sampler"),
    ),
    Mutant(
        "short blocks have one sign",
        "all noise is positive at scales of a few steps",
        "bulk_noise._integers",
        "magnitudes, -magnitudes",
        "magnitudes, magnitudes",
        (
            "test_rounded_noise.py::test_every_draw_is_what_its_bytes_make_it_in_fractions",
            "audit:sampler",
        ),
    ),
    Mutant(
        "a word has no bit left for the sign",
        "all noise is positive at scales of some widths",
        "BulkSampler.__init__",
        "if 8 * w > blocks.bits",
        "if 8 * w >= blocks.bits",
        (
            "test_bulk_noise.py::"
            "test_the_sign_is_fair_where_the_place_takes_all_bits_of_a_word_but_one_or_none",
        ),
    ),
    Mutant(
        "zero is drawn once for each sign",
        "noise is zero too often: the true answer shows",
        "BlockLaw._ratios",
        "weights = [Decimal(1)] * self.first",
        "weights = [Decimal(2)] * self.first",
        (
            "test_bulk_noise.py::test_the_thresholds_are_right_to_the_last_bit[laplace-1.0]",
            "audit:sampler",
        ),
    ),
    Mutant(
        "the tail of bulk noise is cut off",
        "a far answer rules its neighbour out for certain",
        "BulkSampler._proposed",
        "noise[i] = self.sample(1)[0] if drawn is None else sign * min(drawn, LARGEST)",
        "noise[i] = self.sample(1)[0]",
        ("test_bulk_noise.py::test_a_choice_of_the_tail_is_drawn_there_with_either_sign",),
    ),
    Mutant(
        "the tail has one sign only",
        "a far answer rules its neighbour out for certain",
        "BulkSampler._proposed",
        "sign * min(drawn, LARGEST)",
        "min(drawn, LARGEST)",
        ("test_bulk_noise.py::test_a_choice_of_the_tail_is_drawn_there_with_either_sign",),
    ),
    Mutant(
        "a float's rounding decides near its bound",
        "the law is off by what the rounding is",
        "BulkSampler._below",
        "np.flatnonzero(np.abs(u - d) < _MARGIN)",
        "np.flatnonzero(np.abs(u - d) < 0)",
        (
            "test_bulk_noise.py::test_a_real_close_to_its_bound_is_compared_exactly",
            "test_rounded_noise.py::"
            "test_further_bits_of_a_place_are_drawn_once_for_all_comparisons",
        ),
    ),
    Mutant(
        "a tie in 64 bits is not drawn on",
        "the law is off by 2^-64 at every threshold",
        "BulkSampler._choices",
        "        for i in np.flatnonzero(tied):",
        "        for i in np.flatnonzero(tied)[:0]:",
        ("test_bulk_noise.py::test_a_tie_in_64_bits_is_decided_by_further_bits",),
    ),
    Mutant(
        "proposals within a block are never refused",
        "noise is flat within a block and jumps between blocks",
        "BulkSampler.sample",
        "        if refused.size:",
        "        if refused.size > size:",
        ("test_bulk_noise.py::test_within_a_block_the_law_falls_as_it_should[laplace-260.7]",),
    ),
    Mutant(
        "a refused proposal is drawn from the blocks' low ends alone",
        "the law falls too fast within a block",
        "BulkSampler._refused",
        "            if j % 2 == 0:",
        "            if j % 2 == 1:",
        ("test_bulk_noise.py::test_within_a_block_the_law_falls_as_it_should[laplace-260.7]",),
    ),
    Mutant(
        "every chunk of the bulk sampler has the noise of the first",
        "differences of answers of two chunks are exact",
        "BulkSampler.sample",
        "        if refused.size:",
        "        for first in range(_CHUNK, size, _CHUNK):\n"
        "            noise[first : first + _CHUNK] = noise[: min(_CHUNK, size - first)]\n"
        "        if refused.size:",
        (
            "test_bulk_noise.py::test_neighbours_in_a_sample_are_independent[rounded-1000.3]",
            "audit:sampler",
        ),
    ),
    Mutant(
        "every second chunk of the bulk sampler is minus the one before it",
        "sums of answers of two chunks are exact",
        "BulkSampler.sample",
        "        if refused.size:",
        "        for first in range(_CHUNK, size, 2 * _CHUNK):\n"
        "            last = min(first + _CHUNK, size)\n"
        "            noise[first:last] = -noise[first - _CHUNK : last - _CHUNK]\n"
        "        if refused.size:",
        (
            "test_bulk_noise.py::test_neighbours_in_a_sample_are_independent[rounded-1000.3]",
            "audit:sampler",
        ),
    ),
    Mutant(
        "what a later chunk refuses is drawn again in the first",
        "noise is flat within a block and jumps between blocks",
        "BulkSampler._proposed",
        "_Proposals(going + first,",
        "_Proposals(going,",
        ("test_bulk_noise.py::test_within_a_block_the_law_falls_as_it_should[rounded-260.7]",),
    ),
    Mutant(
        "the sign is also the first bit by which a place is refused",
        "one sign is drawn more often than the other",
        "BulkSampler._seven_bits",
        "used = self.law.bits + 1",
        "used = self.law.bits",
        (
            "test_rounded_noise.py::test_every_draw_is_what_its_bytes_make_it_in_fractions",
            "test_rounded_noise.py::"
            "test_a_sign_neither_shows_in_a_place_nor_in_what_is_refused[3.3]",
        ),
    ),
    Mutant(
        "Gaussian noise is rounded toward zero",
        "zero is drawn too often, and the noise is too small by half a step",
        "BlockLaw.half",
        "return 1 << self.halvings >> 1",
        "return 0",
        (
            "test_rounded_noise.py::"
            "test_a_step_is_rounded_to_one_integer_whatever_is_drawn_within_it",
            "audit:sampler",
        ),
    ),
    Mutant(
        "a place within a step has 53 bits",
        "the law has gaps that floats have",
        "_Proposals.exactly",
        "LazyReal.of(int(self.fraction[i]))",
        "LazyReal(Fraction(int(self.fraction[i]) >> 11, 2**53), Fraction(0))",
        ("test_rounded_noise.py::test_further_bits_of_a_place_are_drawn_once_for_all_comparisons",),
    ),
    Mutant(
        "a place within a step is drawn anew for every comparison",
        "noise is accepted as often as the mean over its step says",
        "_Proposals.exactly",
        "fraction = self.drawn_on.setdefault(int(self.position[i]), exact)",
        "fraction = exact",
        ("test_rounded_noise.py::test_further_bits_of_a_place_are_drawn_once_for_all_comparisons",),
    ),
    Mutant(
        "the tail is drawn at the low ends of its steps",
        "the tail is too heavy",
        "SlowSampler.from_tail",
        "LazyReal(width=Fraction(1 - law.first))",
        "LazyReal(width=Fraction(0))",
        (
            "test_bulk_noise.py::"
            "test_the_tail_accepts_by_the_share_of_the_law_in_its_envelope[rounded-1]",
        ),
    ),
    Mutant(
        "the scale is rounded down to a 64th",
        "noise is less than what is charged, by less than any sample shows",
        "BlockLaw.of",
        "exact = Fraction(scale)",
        "exact = Fraction(int(64 * scale), 64)",
        ("test_rounded_noise.py::test_the_exponent_is_that_of_the_very_scale",),
    ),
    Mutant(
        "a GDP guarantee draws discrete Gaussian noise",
        "the discrete law is not GDP: delta is up to 2.48 times what is promised",
        "Guarantee.law",
        '"rounded" if self.kind == "gdp" else self.noise',
        "self.noise",
        ("test_rounded_noise.py::test_the_law_is_drawn_at_the_very_scale", "audit:sampler"),
    ),
    Mutant(
        "a few numbers of a GDP guarantee are OpenDP's",
        "the discrete law is not GDP: delta is up to 2.48 times what is promised",
        "_in_bulk",
        'return kind == "gdp" or size > BULK_ABOVE',
        "return size > BULK_ABOVE",
        ("test_rounded_noise.py::test_opendp_is_never_asked_for_rounded_noise[1]",),
    ),
    Mutant(
        "a GDP guarantee is held against half its cost",
        "a scale smaller by a root of two is drawn at",
        "noise_cost",
        "return sensitivity / exact**2",
        "return sensitivity / (2 * exact**2)",
        ("test_noise.py::test_bulk_noise_is_held_against_the_budget_to_the_last_bit",),
    ),
    Mutant(
        "the twelfth of rounding is not in the standard error",
        "stated errors are too small where the grid is coarse",
        "calibration.standard_deviation",
        "math.hypot(scale, math.sqrt(1 / 12))",
        "scale",
        (
            "test_rounded_noise.py::test_the_variance_is_that_of_the_scale_and_a_twelfth",
            "test_rounded_noise.py::test_drawn_noise_has_the_stated_standard_deviation[1.0]",
        ),
    ),
    Mutant(
        "bounded numbers lean to the small ones",
        "RAP's choice among queries of one score is not even",
        "ExactChance.below",
        "        while (drawn := random.bits(bits)) >= bound:\n"
        "            pass\n"
        "        return drawn",
        "        return random.bits(bits) % bound",
        ("test_selection.py::test_every_number_below_a_bound_has_as_many_bytes",),
    ),
)
