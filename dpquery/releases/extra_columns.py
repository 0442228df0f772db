"""The facts on extra columns: for release.json, for statement.md and for the screen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from dpquery.reconstruction import graphical_model
from dpquery.reconstruction.columns import ColumnName, ExtraColumn, ToldError
from dpquery.releases.manifest import ColumnFacts, EmptyFacts, Manifest, WeightFacts
from dpquery.releases.manifest_facts import AdaptiveFacts
from dpquery.releases.words import count, figure, one_line
from dpquery.untrusted.json_values import JsonValue

READING = """\
The extra columns are made from the noisy answers alone and take no budget. They are biased: in
small cells they tend to err less than `estimate`, in sums of many cells they can err far more. \
`std_error`, `ci_low`, `ci_high`, `rel_error` and `flag` belong to `estimate`, and to no other \
column."""

SAMPLING = {
    "sampling_std": "standard error of the sample; empty where {told_by} not measured, or "
    "hidden by noise",
    "total_std": "standard error of sample and noise together; empty likewise",
    "total_low": "lower end of the interval of both; empty likewise",
    "total_high": "upper end of the interval of both; empty likewise",
}
"""What the columns of the error of a sample hold."""
READING_SAMPLE = """\
`sampling_std` is estimated from sums of squared weights, measured with noise of their own for a \
tenth of the guarantee. It takes each record to have been drawn by itself, with a {chance} \
(Poisson sampling), and the variance to be {effect:g} times as large (the declared design \
effect). {design}If weights are as the spec's `total` and `effective` say, the noise of these sums \
moves it by a sixth of itself at most, as a standard deviation. Weights that were cut off, and \
records that are missing otherwise than by chance, are in no interval. `std_error`, `ci_low`, \
`ci_high`, `rel_error` and `flag` are of the noise alone."""
READING_REPLICATES = """\
`sampling_std` is estimated from {copies} replicate weights (`{first}` and so on): how far the \
answer by each is from `estimate`, squared and added up, times {factor:.6g}, less what noise adds. \
These differences were measured with noise of their own for a tenth of the guarantee. It is told \
where it is three standard errors of that noise or more, and is rather too large just above; \
intervals are by Student's t with {degrees} degrees of freedom, and fewer for noise. A record's \
differences were scaled down to {at_most:.6g} where they were longer together. Weights that were \
cut off, and records that are missing otherwise than by chance, are in no interval. `std_error`, \
`ci_low`, `ci_high`, `rel_error` and `flag` are of the noise alone."""
READING_STRATA = """\
What the declared strata, the values of `{strata}`, make it less is taken off as far as noise lets \
it be known; elsewhere{without} it is too large. """
READING_CLUSTERS = """\
Where the same was measured by the declared clusters, the values of `{clusters}`{strata}, and \
noise does not hide it, their totals make it instead, and intervals are by Student's t; elsewhere\
{without} the design effect does. """

READING_UNBIASED = """\
`unbiased` is made from the noisy tables alone, and takes no budget. Its noise interval is \
`unbiased` plus and minus 1.96 times `unbiased_std_error` (95 %). Where it is filled in, it is the \
one to test and to compare with; `estimate` tends to err less in small cells, by how much nobody \
can say."""


@dataclass(frozen=True)
class FittedFacts:
    """What is to be said of extra columns beside what they mean."""

    # for each column that may lack values, and each item, why some of its tables have none; empty
    # where all have
    reasons: Mapping[ColumnName, Mapping[str, str]]
    told: Mapping[ColumnName, ToldError]  # of columns whose error the noisy values tell


def with_extra(manifest: Manifest, columns: Sequence[ExtraColumn], fitted: FittedFacts) -> Manifest:
    """Return a manifest with the facts on a release's extra columns."""
    if not columns:
        return manifest
    names = {column.name for column in columns}
    libraries = graphical_model.LIBRARIES if "graphical" in names else ()
    versions = dict(manifest.libraries) | {name: version(name) for name in libraries}
    texts = ", ".join(column.text for column in columns)
    return replace(
        manifest,
        libraries=tuple(sorted(versions.items())),
        postprocessing=f"none of the estimates; beside them stand the extra columns {texts}",
        extra=tuple(_facts(column, fitted) for column in columns),
    )


def with_sampling(
    manifest: Manifest, reasons: Mapping[str, str], without_design: Sequence[str]
) -> Manifest:
    """Return a manifest with the columns of the error of the sample, where there are such.

    Reasons are why they are empty in an item, by its name; named are also the items of whose error
    declared strata or clusters tell nothing.
    """
    weight = manifest.privacy.weight
    if weight is None or not manifest.tells_sample:
        return manifest
    weight = replace(weight, without_design=tuple(without_design))
    manifest = replace(manifest, privacy=replace(manifest.privacy, weight=weight))
    empty = tuple(EmptyFacts(name, reason) for name, reason in reasons.items() if reason)
    reasons_of = {"sampling_std": empty}
    columns = (
        ColumnFacts(name, name, words.format(told_by=told_by(weight)), reasons_of.get(name, ()))
        for name, words in SAMPLING.items()
    )
    return replace(manifest, extra=(*manifest.extra, *columns))


def told_by(weight: WeightFacts) -> str:
    """Return what the error of a sample is made of, as the subject of a clause."""
    squares = "the sum of squared weights that it needs is"
    return squares if weight.replicates is None else "the differences of replicate weights are"


def biased_columns(manifest: Manifest) -> list[ColumnFacts]:
    """Return the extra columns but for those of the error of a sample."""
    return [facts for facts in manifest.extra if facts.name not in SAMPLING]


def _facts(column: ExtraColumn, fitted: FittedFacts) -> ColumnFacts:
    reasons = fitted.reasons.get(column.name, {})
    empty = tuple(EmptyFacts(name, reason) for name, reason in reasons.items() if reason)
    facts = ColumnFacts(column.name, column.text, column.meaning, empty)
    if (told := fitted.told.get(column.name)) is None:
        return facts
    return replace(facts, expected_rmse=told.rmse, expected_interval=(told.low, told.high))


def extra_lines(manifest: Manifest) -> list[str]:
    """Return the lines of the statement on the extra columns: what they hold, and how to read."""
    if not manifest.extra:
        return []
    lines = [
        f"- `{facts.name}`: {facts.meaning}.{_expected_words(facts)}{_empty_words(facts)}"
        for facts in manifest.extra
    ]
    if biased_columns(manifest):
        lines += ["", READING if manifest.error_bars else READING_UNBIASED]
    if words := reading_sample(manifest):
        lines += ["", words]
    return lines


def reading_sample(manifest: Manifest) -> str:
    """Return what the error of a sample is made of; nothing where none is told."""
    weight = manifest.privacy.weight
    if weight is not None and (of := weight.replicates) is not None:
        names = {"copies": len(of.columns), "first": one_line(of.columns[0])}
        return READING_REPLICATES.format(
            **names, factor=of.factor, degrees=of.degrees, at_most=of.at_most
        )
    if weight is None or weight.design_effect is None:
        return ""
    chance = "chance of one over its weight" if weight.inclusion else "small chance"
    without, design = ", ".join(f"`{name}`" for name in weight.without_design), ""
    without = f", as in all of {without}," * bool(without)
    if weight.clusters:
        strata = f" in each of `{weight.strata}`" * bool(weight.strata)
        names = {"clusters": weight.clusters, "strata": strata, "without": without}
        design = READING_CLUSTERS.format(**names)
    elif weight.strata:
        design = READING_STRATA.format(strata=weight.strata, without=without)
    return READING_SAMPLE.format(chance=chance, effect=weight.design_effect, design=design)


def _expected_words(column: ColumnFacts) -> str:
    """Return the estimated error of a column in a sentence, where there is one."""
    words = _told_words(column)
    return words and (
        f" As the noisy values tell, its answers err by {words}: the root mean square of all "
        "counts together."
    )


def nearer_json(manifest: Manifest) -> dict[str, JsonValue]:
    """Return the error of the best guess for --json, where it is a column or far nearer."""
    if manifest.nearer:
        return {"nearer": {"column": "shrunk", "rmse": manifest.nearer[0]}}
    for column in manifest.extra:
        if (ends := column.expected_interval) is not None:
            about: dict[str, JsonValue] = {
                "column": column.name,
                "rmse": column.expected_rmse,
                "interval": list(ends),
            }
            return {"nearer": about}
    return {}


def told_errors_words(manifest: Manifest) -> str:
    """Return the errors of columns that the noisy values tell, in a clause; nothing without one."""
    told = {column.name: words for column in manifest.extra if (words := _told_words(column))}
    errors = " and ".join(f"`{name}` errs by {words}" for name, words in told.items())
    return errors and f"{errors}, as the noisy values tell"


def _told_words(column: ColumnFacts) -> str:
    if column.expected_interval is None:
        return "" if column.expected_rmse is None else f"about {figure(column.expected_rmse)}"
    low, high = map(figure, column.expected_interval)
    if column.expected_rmse is None:
        return f"at most {high} (95 %)"
    return f"about {figure(column.expected_rmse)} ({low} to {high}, 95 %)"


def _empty_words(column: ColumnFacts) -> str:
    """Return the items without values in a column; one sentence for each reason."""
    items: dict[str, list[str]] = {}
    for empty in column.empty:
        items.setdefault(empty.reason, []).append(f"`{empty.item}`")
    return "".join(
        f" Empty in tables of {', '.join(names)}: {reason}." for reason, names in items.items()
    )


def extra_note(manifest: Manifest) -> str:
    """Return one line for the error report: whose the errors are."""
    if (run := manifest.adaptive) is not None:
        return unbiased_words(run)
    biased, words = biased_columns(manifest), []
    if len(biased) < len(manifest.extra):
        words = [
            "figures and verdicts are of noise alone; sampling_std and total_std tell the sample's"
        ]
    if not biased:
        return "; ".join(words)
    names = ", ".join(column.asked for column in biased)
    told = told_errors_words(manifest)
    words.append(
        f"extra columns beside the estimates: {names}; errors, intervals and flags belong to the "
        f"estimates{told and f'; {told}'}"
    )
    return "; ".join(words)


def unbiased_words(run: AdaptiveFacts) -> str:
    """Return how many answers have an unbiased estimate too, and what these err by."""
    if run.unbiased_rmse is None:
        return "no answer has an unbiased estimate: none of the measured tables holds one"
    return (
        f"{count(run.unbiased, 'answer')} {'has' if run.unbiased == 1 else 'have'} an unbiased "
        "estimate too, with its standard error: columns `unbiased` and `unbiased_std_error`, root "
        f"mean square error {figure(run.unbiased_rmse)}"
    )
