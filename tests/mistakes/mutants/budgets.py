"""What is said of a budget: figures on which somebody decides what else to release."""

from mutation import Mutant

FUNDS, SHARES = "test_funds.py", "test_equal_share.py"
STATUS = "test_ledger_status.py"

BUDGETS = (
    Mutant(
        "the largest epsilon that fits is rounded up",
        "an epsilon is offered that the budget cannot pay for",
        "funds.largest_epsilon",
        "    return _neighbours(fits, near=near)[0]",
        "    return _neighbours(fits, near=near)[1]",
        (
            f"{FUNDS}::test_the_largest_epsilon_fits_and_the_next_one_does_not",
            f"{SHARES}::test_the_largest_epsilon_of_a_refusal_is_accepted_and_the_next_one_is_not",
        ),
    ),
    Mutant(
        "what is said to fit forgets the parent",
        "budget is offered that all datasets of the same people together do not have",
        "Funds.tighter",
        "min(self.payers, key=lambda payer: payer.remaining)",
        "self.account",
        (f"{FUNDS}::test_the_tighter_of_both_caps_speaks",),
    ),
    Mutant(
        "the epsilon that was spent is rounded down",
        "a statement says that less was lost than was",
        "epsilon_spent",
        "near=EPSILONS[1])[1]",
        "near=EPSILONS[1])[0]",
        (f"{FUNDS}::test_the_epsilon_that_was_spent_covers_it_and_a_smaller_one_would_not",),
    ),
    Mutant(
        "the number of releases that fit is rounded up",
        "one release more is promised than the budget has room for",
        "Funds.repetitions",
        "int(1 / over)",
        "math.ceil(1 / over)",
        (f"{FUNDS}::test_so_many_more_are_accepted_by_the_ledger_as_were_said_to_fit",),
    ),
    Mutant(
        "a bar is rounded down",
        "a budget that was spent from looks untouched",
        "budget_words.bar",
        "math.ceil(spent * width)",
        "int(spent * width)",
        (
            f"{FUNDS}::test_a_bar_is_empty_only_where_nothing_and_full_only_where_everything_is_spent",
        ),
    ),
    Mutant(
        "a bar is full where something is left",
        "what is left looks spent, and what is spent twice over looks no different",
        "budget_words.bar",
        "width - 1) if spent < 1",
        "width) if spent < 1",
        (
            f"{FUNDS}::test_a_bar_is_empty_only_where_nothing_and_full_only_where_everything_is_spent",
        ),
    ),
    Mutant(
        "a statement leaves out what was spent on the parent",
        "the loss of people who are in several datasets is told as that of one",
        "taken_words",
        "    if parent is None:\n        return text\n",
        "    return text\n",
        (
            f"{FUNDS}::test_the_tighter_of_both_caps_speaks",
            "test_ledger_parent_commands.py::"
            "test_a_release_is_refused_and_told_by_both_caps_and_free_when_made_again",
        ),
    ),
    Mutant(
        "a plan prices Laplace noise as if any strategy cost the same",
        "a release is called dearer than it is, and the other noise is chosen",
        "BudgetShares.pricing",
        "            if calibrated is not None:\n",
        "            if calibrated is not None and noise != 'laplace':\n",
        (f"{SHARES}::test_the_price_of_a_plan_is_what_the_ledger_charges",),
    ),
    Mutant(
        "kinds of noise are compared as if all that was spent were pure",
        "a release is chosen that will be refused, though the other noise would fit",
        "BudgetShares.share",
        "payer.share(price.units, price.pure)",
        "replace(payer, pure=0).share(price.units, price.pure)",
        (
            f"{SHARES}::test_once_a_release_was_not_pure_laplace_noise_is_compared_by_what_it_then_costs",
        ),
    ),
    Mutant(
        "a release made again takes the noise that is the better one by now",
        "what was paid for is not found, and is charged again",
        "linear_mechanism",
        "_charged(priced, query_of, ledger) or chosen",
        "chosen",
        (
            f"{SHARES}::test_a_release_made_again_keeps_its_noise_whatever_was_charged_since",
            f"{SHARES}::test_a_release_that_was_charged_and_not_finished_is_finished_with_its_noise",
        ),
    ),
    Mutant(
        "of two kinds of noise that were charged the later one is taken",
        "a release made again is another one, and the one that was published is gone",
        "Ledger.first_charged",
        "return min(kept",
        "return max(kept",
        (f"{SHARES}::test_a_release_made_again_keeps_its_noise_whatever_was_charged_since",),
    ),
    Mutant(
        "kinds of noise are compared at an equal epsilon",
        "a release takes a tenth of the budget where a hundredth would do better",
        "figures.prices",
        "share, score = one.share, one.equal_score",
        "share, score = one.share, one.score",
        (f"{SHARES}::test_the_choice_is_that_of_a_slow_twin_and_goes_both_ways",),
    ),
    Mutant(
        "an older plan is compared at an equal share",
        "a release that was paid for has another key, and is charged again",
        "Plan.equal_shares",
        "self.edition >= 3",
        "self.edition >= 1",
        (
            f"{SHARES}::"
            "test_a_release_takes_the_cheaper_noise_where_the_other_errs_less_for_far_more",
        ),
    ),
    Mutant(
        "a plan tells the risk without the delta",
        "an extra probability is kept from whoever signs the plan",
        "show_comparison.risk",
        '    aside = "" if pure else',
        '    aside = "" if not pure else',
        (f"{SHARES}::test_a_plan_tells_the_risk_in_the_words_of_the_statement",),
    ),
    Mutant(
        "relaxed rows are compared at an equal epsilon",
        "a linear strategy is preferred for what it errs at many times the price",
        "compare_mechanisms._linear_errors",
        "        best = replace(best, std=best.equal.std)",
        "        best = replace(best, std=best.std)",
        (f"{SHARES}::test_relaxed_rows_are_compared_with_a_linear_strategy_that_takes_no_more",),
    ),
    Mutant(
        "the sum of epsilons is said never to decide",
        "a dataset of pure releases is told by a sum that says too much is spent",
        "Account.decisive",
        "min(self.sums, key=lambda one: one.share)",
        "self.sums[0]",
        (
            f"{STATUS}::test_both_sums_are_said_while_all_releases_are_pure_and_which_one_decides",
            f"{STATUS}::test_sentences_name_the_sum_that_decides",
        ),
    ),
    Mutant(
        "the end of what can be drawn is told as the budget's",
        "a budget looks smaller than it is",
        "_one_above_is_refused",
        "return above <= EPSILONS[1] and not fits(above)",
        "return True",
        (f"{STATUS}::test_the_end_of_what_can_be_asked_for_is_not_said_to_be_the_budgets",),
    ),
    Mutant(
        "any beginning of a key names a run",
        "a slip of the hand gives up a run whose charge stays spent",
        "Ledger._whole_key",
        "if given in entries or len(given) < KEY_PREFIX:",
        "if given in entries:",
        (f"{STATUS}::test_a_run_is_given_up_by_the_characters_that_a_status_shows",),
    ),
    Mutant(
        "the first of several runs is given up",
        "another run than was meant loses what it drew",
        "Ledger._whole_key",
        "if len(keys) > 1:",
        "if not keys:",
        (f"{STATUS}::test_a_beginning_of_several_keys_gives_none_up",),
    ),
)
