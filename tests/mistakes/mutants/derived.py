"""Covariances of answers, and the statistics that are derived from them."""

from mutation import Mutant

_ERRORS = ("test_derived.py::test_errors_are_those_of_the_joint_noise",)
_EXACT = ("test_derived.py::test_statistics_of_exact_answers_are_those_of_the_counts",)
_COVARIANCES = ("test_covariance.py::test_covariances_are_those_of_the_estimates",)
_MISTAKES = ("test_derived_release.py::test_mistakes_in_derived_items_are_named",)

DERIVED = (
    Mutant(
        "means that cannot be held are looked for first",
        "a plan of minutes ends in a refusal that was sure before it began",
        "_counted_spec",
        "check_told_apart(spec, compiled.classes)",
        "pass",
        (
            "test_derived_release.py::"
            "test_means_that_no_strategy_can_hold_are_refused_before_one_is_looked_for",
        ),
    ),
    Mutant(
        "trials leave the noise of denominators out",
        "plan promises smaller errors of shares and means than releases have",
        "DerivedTrials._of_quotients",
        "self.truth[below] + noise_std * self.noise[below]",
        "self.truth[below] + 0 * self.noise[below]",
        (
            "test_derived_targets.py::"
            "test_errors_of_trials_are_those_of_whole_releases_of_the_same_counts",
        ),
    ),
    Mutant(
        "trials are of unit noise at every guarantee",
        "plan names an epsilon that does not meet the target",
        "DerivedTargets._errors",
        "std * math.sqrt(",
        "math.sqrt(",
        (
            "test_derived_targets.py::"
            "test_the_least_epsilon_meets_the_target_and_a_twentieth_less_does_not",
        ),
    ),
    Mutant(
        "targets on derived items leave their items without any",
        "beside a target on an item plan asks for many times the epsilon that a share needs",
        "with_derived",
        "targets and tried is not None",
        "False",
        (
            "test_derived_targets.py::"
            "test_a_target_on_an_item_leaves_room_for_those_on_derived_ones",
        ),
    ),
    Mutant(
        "the error of a quotient leaves the covariance out",
        "shares get errors as if a cell and its margin were independent",
        "NoisyPairs.deviation",
        " - 2 * t * self.covariance",
        "",
        _ERRORS,
    ),
    Mutant(
        "the interval of a quotient takes the covariance with the wrong sign",
        "intervals of shares are too wide, those of differences too narrow",
        "derived._end",
        "- q**2 * pairs.covariance",
        "+ q**2 * pairs.covariance",
        _ERRORS,
    ),
    Mutant(
        "a quantile is off by one class",
        "every median is the next value",
        "quantile_places",
        "rising >= p * rising[-1]))",
        "rising >= p * rising[-1])) + 1",
        _EXACT,
    ),
    Mutant(
        "the interval of a quantile forgets that neighbouring counts share their noise",
        "intervals within bins are too wide or too narrow",
        "_Crossing.of",
        "with_next - p",
        "0 * with_next - p",
        ("test_derived.py::test_intervals_of_quantiles_are_the_places_that_could_be_crossings",),
    ),
    Mutant(
        "a denominator of nothing but noise is divided by",
        "shares and means are published that say nothing",
        "quotient_rows",
        "    lost = limits.lost(pairs.below, least)",
        "    lost = limits.lost(pairs.below, -np.inf)",
        ("test_derived.py::test_what_is_lost_in_noise_has_no_estimate_and_says_why",),
    ),
    Mutant(
        "a share is of the wrong margin",
        "shares do not add up to one",
        "_Reader._share",
        "axis[0] in within",
        "axis[0] not in within",
        _EXACT,
    ),
    Mutant(
        "a population of nobody is divided by",
        "a rate is infinite",
        "derived._number",
        "if not 0 < value < 1e18:",
        "if False:",
        _MISTAKES,
    ),
    Mutant(
        "a covariance forgets attributes that one query alone looks at",
        "errors of shares and differences are wrong for marginals",
        "SplitStrategy._covariances",
        "                apart = apart * level\n",
        "                apart = apart * 1\n",
        ("test_covariance.py::test_so_are_those_with_later_questions",),
    ),
    Mutant(
        "answers from two parts of a union vary together",
        "errors of statistics across parts are wrong",
        "UnionStrategy.covariances",
        "if k != other:",
        "if False:",
        _COVARIANCES,
    ),
    Mutant(
        "rows of one measurement are taken for one row",
        "the workload's own answers are said to vary together",
        "DirectStrategy.covariances",
        "same &= first[i] == second[i]",
        "same &= first[i] >= 0",
        _COVARIANCES,
    ),
    Mutant(
        "records without a value are among those of a mean",
        "blanks pull means down",
        "derived._Reader._counted",
        "return replace(denominator, where=where), ",
        "return denominator, ",
        ("test_derived_release.py::test_a_mean_is_of_those_who_have_a_value",),
    ),
)
