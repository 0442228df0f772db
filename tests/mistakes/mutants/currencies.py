"""What losses are added up as: mu^2 of GDP, and the plain sum of pure releases."""

from mutation import Mutant

CURRENCIES = (
    Mutant(
        "mu^2 is rounded up from (epsilon, delta)",
        "the promise is passed in the last digit",
        "squared_mu_of",
        "    return Fraction(_last(excess, _UNIT * near**2), _UNIT)",
        "    return Fraction(_last(excess, _UNIT * near**2) + 1, _UNIT)",
        ("test_accounting.py::test_squared_mu_is_to_the_last_unit_what_it_was_worked_out_to_be",),
    ),
    Mutant(
        "the curve of GDP loses its second term",
        "delta is overstated, or where the sign is turned understated",
        "delta_of",
        "mills(u) - mills(v)",
        "mills(v) - mills(u)",
        ("test_accounting.py::test_squared_mu_is_to_the_last_unit_what_it_was_worked_out_to_be",),
    ),
    Mutant(
        "Gaussian noise of a GDP guarantee has the scale of one in rho",
        "noise is too small by the root of two",
        "accounting.noise_cost",
        "            return sensitivity / exact**2",
        "            return sensitivity / (2 * exact**2)",
        (
            "test_accounting.py::test_the_scale_of_a_gdp_guarantee_meets_its_squared_mu_exactly",
            "test_counted.py::test_a_plan_with_gaussian_noise_counts_in_gdp_and_takes_the_noise"
            "_of_the_curve",
        ),
    ),
    Mutant(
        "mu is added up in place of mu^2",
        "two releases of mu 2 cost what is worth far less than they are together",
        "charge_units",
        '        case ("epsilon", "pure") | ("rho", "zcdp") | ("mu^2", "gdp"):\n'
        "            cost = spent.amount\n",
        '        case ("epsilon", "pure") | ("rho", "zcdp"):\n'
        "            cost = spent.amount\n"
        '        case "mu^2", "gdp":\n'
        "            cost = Fraction(math.sqrt(spent.amount))\n",
        (
            "test_counted.py::test_amounts_of_one_kind_are_charged_in_the_others_only_as_far_as"
            "_is_proven",
            "audit:charges",
        ),
    ),
    Mutant(
        "Laplace noise costs in mu^2 what it does twice in rho",
        "a mean privacy loss is no bound on the curve of GDP",
        "laplace_squared_mu",
        "HALF_PI_ABOVE * squared",
        "squared",
        (
            "test_accounting.py::test_squared_mu_is_to_the_last_unit_what_it_was_worked_out_to_be",
            "audit:charges",
        ),
    ),
    Mutant(
        "a pure epsilon costs half of its mu",
        "the curve of randomized response lies below the one charged for",
        "squared_mu_of_pure",
        "    return Fraction(_last(shortfall, 4 * _UNIT * near**2) + 1, _UNIT)",
        "    return Fraction(_last(shortfall, 4 * _UNIT * near**2) // 4 + 1, _UNIT)",
        (
            "test_accounting.py::test_squared_mu_is_to_the_last_unit_what_it_was_worked_out_to_be",
            "audit:charges",
        ),
    ),
    Mutant(
        "discrete Gaussian noise is charged in mu^2 as twice its rho",
        "it is not GDP, and neither is RAP",
        "charge_units",
        '        case "rho", "gdp":\n            cost = spent.amount / 2\n',
        '        case "rho", "gdp":\n            cost = spent.amount / 2\n'
        '        case "mu^2", "zcdp" if spent.delta:\n            cost = 2 * spent.amount\n',
        ("test_counted.py::test_a_release_in_rho_is_refused_where_mu_squared_adds_up",),
    ),
    Mutant(
        "a release that is not pure is forgotten by the sum of epsilons",
        "a budget of its own for each kind of noise",
        "Account.charged",
        "        both = None if self.pure is None or pure is None else self.pure + pure\n",
        "        both = (self.pure or 0) + (pure or 0)\n",
        (
            "test_two_sums.py::test_no_adversary_reaches_more_than_delta",
            "test_two_sums.py::test_one_release_that_is_not_pure_ends_the_sum_of_epsilons_for_good",
            "audit:charges",
        ),
    ),
    Mutant(
        "the sum of epsilons is that of the release alone",
        "every pure release below the cap is admitted",
        "Account.sums",
        'RunningSum("epsilon", most, self.pure)',
        'RunningSum("epsilon", most, 0)',
        (
            "test_two_sums.py::test_pure_releases_alone_fill_the_epsilon_of_the_cap_exactly",
            "audit:charges",
        ),
    ),
    Mutant(
        "a parent takes over no sum of epsilons",
        "what was spent before is spent again on the same people",
        "LedgerState._adopt",
        "parent.charged(child.spent, child.pure)",
        "parent.charged(child.spent, 0)",
        ("test_two_sums.py::test_a_parent_adds_up_the_epsilons_of_all_its_datasets",),
    ),
    Mutant(
        "a release that says nothing of its guarantee counts as pure",
        "Gaussian noise adds nothing to the sum of epsilons",
        "events.pure_units",
        '    if not isinstance(native, Mapping) or set(native) != {"pure"}:\n        return None\n',
        '    if not isinstance(native, Mapping) or "pure" not in native:\n        return 0\n',
        ("test_two_sums.py::test_one_release_that_is_not_pure_ends_the_sum_of_epsilons_for_good",),
    ),
    Mutant(
        "a plan does not ask the record what losses are added up as",
        "a dataset on record in rho is planned in GDP, which its record refuses",
        "settled_accounting",
        "        if name in currencies and",
        "        if not name and name in currencies and",
        ("test_counted.py::test_a_dataset_on_record_keeps_its_currency",),
    ),
    Mutant(
        "a budget of mu^2 is that of twice its epsilon",
        "releases together pass the promise",
        "budget_cap",
        "Cap(currency, 0, epsilon=epsilon,",
        "Cap(currency, 0, epsilon=2 * epsilon,",
        ("test_accounting.py::test_a_cap_is_converted_at_its_own_delta", "audit:charges"),
    ),
    Mutant(
        "a dataset is charged to itself and not to its parent where the parent is short",
        "several datasets spend one budget each on the same people",
        "Funds.fits",
        "for payer in self.payers)",
        "for payer in self.payers[:1])",
        (
            "test_two_sums.py::test_a_parent_adds_up_the_epsilons_of_all_its_datasets",
            "audit:charges",
        ),
    ),
    Mutant(
        "a dataset that was charged moves to what the next plan prefers",
        "a sum of unlike currencies bounds nothing",
        "caps._registered",
        "    if not account.spent and cap_counted_in",
        "    if cap_counted_in",
        (
            "test_counted.py::"
            "test_a_dataset_that_was_not_charged_moves_to_what_the_next_plan_says[alone]",
        ),
    ),
    Mutant(
        "a parent's other datasets keep their caps where it moves",
        "charges of one dataset are refused by its parent, or added up in another currency",
        "caps._registered",
        "            if other.parent == name:\n",
        '            if other.parent == name and other.cap.currency == "epsilon":\n',
        (
            "test_counted.py::test_a_dataset_that_was_not_charged_moves_to_what_the_next_plan_says"
            "[with a parent]",
        ),
    ),
    Mutant(
        "all places of a short block are its first",
        "some answers are never given, and rule their neighbours out",
        "bulk_noise._integers",
        "law.start(block) + places + law.half",
        "law.start(block) + 0 * places + law.half",
        ("test_rounded_noise.py::test_every_draw_is_what_its_bytes_make_it_in_fractions",),
    ),
)
