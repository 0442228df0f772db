"""What statement.md says of a release of relaxed rows, in words."""

from collections.abc import Sequence

from dpquery.releases.formatting import count, figure, one_line
from dpquery.releases.manifest.rap_facts import AdaptiveFacts, RapFacts, SimulatedFacts
from dpquery.releases.manifest.release_json import Manifest


def rmse_name(simulated: SimulatedFacts) -> str:
    """Return the name of a simulated RMSE: weighted where the workload weighs its items."""
    return "weighted RMSE" if simulated.weighted else "RMSE"


def simulated_words(run: RapFacts | AdaptiveFacts, *, spread_as: str = " (spread {})") -> str:
    """Return the errors in the plan's simulation, and that these were not measured."""
    simulated = run.simulated
    if simulated is None:
        return "errors are unknown; none were simulated for these questions at this guarantee"
    spreads = (simulated.rmse_spread, simulated.max_error_spread)
    # One run says nothing of the spread.
    rmse, largest = (
        spread_as.format(figure(spread)) * (simulated.repetitions > 1) for spread in spreads
    )
    return (
        f"errors are unknown; simulated, not measured: {rmse_name(simulated)} "
        f"{figure(simulated.rmse)}{rmse} and largest error "
        f"{figure(simulated.max_error)}{largest} in {count(simulated.repetitions, 'run')} on "
        f"{one_line(simulated.proxy)}"
    )


def relaxed_words(manifest: Manifest) -> str:
    """Return how the answers of relaxed rows were made, and what is known of their errors."""
    run = manifest.fitted
    match run:
        case RapFacts():
            method, measured = "relaxed adaptive projection (RAP)", _measured_words(manifest, run)
            stds, chosen = run.noise_std, run.selection_scale is not None
        case AdaptiveFacts():
            method, measured = "adaptive measurement of whole tables", _chosen_words(run)
            stds, chosen = (run.one_way_std, *run.noise_std), True
        case None:
            raise ValueError("not a release of relaxed rows")
    # Statements of older releases keep their bytes.
    spread_as = " (spread {})" if manifest.described else " ± {}"
    paid = "every choice and every count" if chosen else "every count"
    return (
        f"{tables_made(manifest)} read from "
        f"{count(run.relaxed_rows, 'relaxed row')}, made by {method}. A "
        "relaxed row is a record whose every attribute is a probability distribution over its "
        f"values. {measured} {_total_words(run)} The promise above covers "
        f"the whole run: {paid} is paid for in zero-concentrated differential privacy, and its ρ "
        f"was charged at once, before anything was measured. "
        f"{_source_words(manifest, stds, chosen=chosen)}\n\n"
        f"What is known of the errors: {simulated_words(run, spread_as=spread_as)}."
        + " What other data say is to be expected if the records resemble them. A file of them is "
        "public by the word of whoever planned the release: nothing here protects it."
        * (run.simulated is not None)
    )


def tables_made(manifest: Manifest) -> str:
    """Return how many files of tables were made, with their verb."""
    files = len(manifest.items)
    return f"{count(files, 'table file')} {'was' if files == 1 else 'were'}"


def _measured_words(manifest: Manifest, rap: RapFacts) -> str:
    if rap.selection_scale is None:
        whose = "was asked for" if manifest.answered is None else "the release was made for"
        return (
            f"Every count that {whose} was measured with noise, once, and the relaxed rows were "
            "fitted to all noisy counts."
        )
    rounds = "In one round" if rap.rounds == 1 else f"In each of {count(rap.rounds, 'round')}"
    return (
        f"{rounds}, {count(rap.selected, 'count')} on which the relaxed rows were far from the "
        f"records {'was' if rap.selected == 1 else 'were'} drawn by lot, a count "
        f"{figure(rap.selection_scale)} further off being e times as likely (the exponential "
        "mechanism), and measured with noise. After each measurement the relaxed rows were fitted "
        "to all noisy counts so far; all else was computed from noisy values."
    )


def measured_count(run: AdaptiveFacts) -> str:
    """Return how many rounds measured how many of the tables that could be chosen."""
    return (
        f"{count(len(run.rounds), 'round')} measured {len(set(run.rounds))} of "
        f"{count(run.candidates, 'table')}"
    )


def _chosen_words(run: AdaptiveFacts) -> str:
    times = "once" if len(run.rounds) == 1 else f"{len(run.rounds):,} times"
    return (
        f"First {count(run.one_way, 'table')} of one attribute "
        f"{'was' if run.one_way == 1 else 'were'} measured with noise. Then, {times}, one of "
        f"{run.candidates:,} tables was drawn by lot, a table on which the relaxed rows were "
        "further from the records than noise explains being the more likely (the exponential "
        f"mechanism), and measured whole, with noise: {len(set(run.rounds)):,} different ones. "
        "After each measurement the relaxed rows were fitted to all noisy tables so far, and where "
        "one had moved them by no more than its noise, the next round spent four times as much; "
        "all that was decided so was computed from noisy values."
    )


def _total_words(rap: RapFacts | AdaptiveFacts) -> str:
    if rap.total_std is None:
        return f"Answers are scaled to the declared number of records, {figure(rap.total)}."
    noise = f"noise of standard deviation {figure(rap.total_std)}"
    if rap.declared is None:
        return (
            "Answers are scaled to the number of records, which was measured too: "
            f"{figure(rap.total)}, with {noise}."
        )
    return (
        f"Answers are scaled to {figure(rap.total)} records: their number was measured too, with "
        f"{noise}, and weighed by inverse variances with the declared number, "
        f"{figure(rap.declared)}, which was given a standard deviation of half of itself."
    )


def _source_words(manifest: Manifest, stds: Sequence[float], *, chosen: bool) -> str:
    noise_facts = manifest.noise
    least, most = figure(min(stds)), figure(max(stds))
    spread = most if least == most else f"{least} to {most}"
    origin = "Choices and noise come" if chosen else "All draws come"
    return (
        "To each measured count, noise of the discrete Gaussian distribution of standard deviation "
        f"{spread} was added once. {origin} from {one_line(noise_facts.source)}, which "
        f"draws them exactly, in whole steps of {2.0**noise_facts.shift:g}, from a cryptographic "
        "random generator: no "
        "floating-point noise is used, and no seed exists from which it could be drawn again. "
        "The proofs and tests behind this reduce the risk of an implementation error; they do not "
        "remove it."
    )
