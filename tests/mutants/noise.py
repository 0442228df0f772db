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
        "BulkSampler(budget.noise, scale)",
        "BulkSampler(budget.noise, max(1.0, 0.95 * scale))",
        ("test_noise.py::test_either_source_draws_at_the_very_scale", "audit:sampler"),
    ),
    Mutant(
        "the bulk sampler's scale is 2 % too small",
        "every number is less private than what is charged, by less than a chart shows",
        "draw",
        "BulkSampler(budget.noise, scale)",
        "BulkSampler(budget.noise, max(1.0, 0.98 * scale))",
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
        "    return noisy\n",
        "    noisy[:1] = answers[:1]\n    return noisy\n",
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
        "partial(_saturated_sum, BulkSampler(budget.noise, scale))",
        "lambda chunk: chunk + np.clip(\n"
        "            BulkSampler(budget.noise, scale).sample(chunk.size), -6 * scale, 6 * scale\n"
        "        ).astype(np.int64)",
        ("test_noise.py::test_noise_far_out_in_the_tail_is_added_as_it_was_drawn",),
    ),
    Mutant(
        "the scale is not held against the budget",
        "a scale from anywhere is drawn at",
        "draw",
        "if sensitivity <= 0 or _cost(budget.noise, sensitivity, scale) > budget.amount:",
        "if sensitivity <= 0:",
        ("test_noise.py::test_bulk_noise_is_held_against_the_budget_to_the_last_bit",),
    ),
    Mutant(
        "Gaussian noise is held against half its cost",
        "a scale smaller by a root of two is drawn at",
        "exact_noise._cost",
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
        "scale: float, *, entropy: Entropy = os.urandom)",
        "scale: float, *, entropy: Entropy = np.random.default_rng().bytes)",
        (
            "test_bulk_noise.py::test_the_product_draws_from_the_operating_system",
            "test_architecture.py::test_the_package_keeps_the_rule"
            "[only_one_module_makes_generators]",
        ),
    ),
    Mutant(
        "bulk noise leans to one side",
        "answers are biased, and one sign tells more than the other",
        "BulkSampler._accepted",
        "sign = 1 - 2 * (word >> kind(law.bits) & kind(1)).astype(np.int64)",
        "sign = 1 - 2 * ((word >> kind(law.bits) & kind(1)) & (word & kind(1))).astype(np.int64)",
        ("test_bulk_noise.py::test_the_low_bits_are_fair_and_so_is_the_sign", "audit:sampler"),
    ),
    Mutant(
        "a word has no bit left for the sign",
        "all noise is positive at scales of some widths",
        "BulkSampler.__init__",
        "if 8 * w > law.bits",
        "if 8 * w >= law.bits",
        (
            "test_bulk_noise.py::"
            "test_the_sign_is_fair_where_the_place_takes_all_bits_of_a_word_but_one_or_none",
        ),
    ),
    Mutant(
        "zero is drawn once for each sign",
        "noise is zero too often: the true answer shows",
        "BlockLaw._ratios",
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
        "BulkSampler._accepted",
        "noise[i] = self._accepted(1)[0] if drawn is None else sign[i] * min(drawn, LARGEST)",
        "noise[i] = self._accepted(1)[0]",
        ("test_bulk_noise.py::test_a_choice_of_the_tail_is_drawn_there_with_either_sign",),
    ),
    Mutant(
        "the tail has one sign only",
        "a far answer rules its neighbour out for certain",
        "BulkSampler._accepted",
        "sign[i] * min(drawn, LARGEST)",
        "min(drawn, LARGEST)",
        ("test_bulk_noise.py::test_a_choice_of_the_tail_is_drawn_there_with_either_sign",),
    ),
    Mutant(
        "a float's rounding decides near its bound",
        "the law is off by what the rounding is",
        "BulkSampler._below",
        "np.flatnonzero(np.abs(real - d) < _MARGIN)",
        "np.flatnonzero(np.abs(real - d) < 0)",
        ("test_bulk_noise.py::test_a_real_close_to_its_bound_is_compared_exactly",),
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
        "BulkSampler._accepted",
        "            if refused.size:",
        "            if refused.size > size:",
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
