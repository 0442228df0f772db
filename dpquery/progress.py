"""What is being done, for an operator's terminal: one reporter for all that runs in a context.

Whoever has a screen sets the reporter once; the work reports where it is done. Only public words
and numbers are reported, and shares of work that is done. The reporter may raise, and so ends the
work: the search of strategies looks at its clock so. Without a reporter nothing is shown; a new
thread or a spawned process starts without one, a forked one keeps its parent's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from dpquery.exceptions import OutOfTimeError

Reporter = Callable[[str], None]
"""Takes a line that says what is being done."""
WHOLE_COMMAND = "the whole command"
"""What the shares of stages are of."""


class LineWithShare(str):
    """A line that says what is being done and which share of it is done."""

    words: str  # what is being done
    done: float  # the share, from 0 to 1
    work: str  # what the share is of: another one starts again at nothing

    def __new__(cls, words: str, done: float, work: str = "") -> "LineWithShare":
        """Return the line of some words and a share; what it is of is the words unless given."""
        line = super().__new__(cls, f"{words}: {done:.0%}")
        line.words, line.done, line.work = words, done, work or words
        return line


def _show_nothing(line: str) -> None:
    """Let a line go unseen."""


_REPORTER: ContextVar[Reporter] = ContextVar("reporter", default=_show_nothing)


@contextmanager
def reporting(reporter: Reporter | None) -> Iterator[None]:
    """Report what is done within to this reporter and to no other; with None, to nobody.

    >>> with reporting(print):
    ...     report_progress("reading the data", 0.25)
    ...     report_progress("fitting the graphical model")
    reading the data: 25%
    fitting the graphical model
    """
    before = _REPORTER.set(reporter or _show_nothing)
    try:
        yield
    finally:
        _REPORTER.reset(before)


def current_reporter() -> Reporter:
    """Return the reporter that is set, for one that adds to its lines."""
    return _REPORTER.get()


@contextmanager
def stage(words: str, first: float, last: float) -> Iterator[None]:
    """Report what is done within as a stage of a longer work, whose shares never fall.

    Empty words add nothing to what is reported within.

    >>> with reporting(print), stage("", 0.0, 0.5), stage("searching", 0.2, 1.0):
    ...     report_progress("OPT_0")
    ...     report_progress("OPT_M", 0.5)
    searching: 10%
    searching: OPT_0: 10%
    searching: OPT_M: 30%
    """
    reporter, reached = current_reporter(), first

    def report(line: str) -> None:
        nonlocal reached
        inner = line
        if isinstance(line, LineWithShare):
            inner, share = line.words, min(max(line.done, 0.0), 1.0)
            reached = max(reached, first + (last - first) * share)
        text = ": ".join(part for part in (words, inner) if part)
        reporter(LineWithShare(text, reached, WHOLE_COMMAND))

    with reporting(report):
        if words:
            with suppress(OutOfTimeError):  # who is within looks at the clock, and may hand over
                report("")
        yield


class Work:
    """Work of which shares are reported that never fall, even where more of it turns up."""

    def __init__(self, words: str) -> None:
        """Begin; `words`, which are public, say what is being done."""
        self._words = words
        self._done = 0.0

    def report(self, share: float) -> None:
        """Report the share of the work that is done, from 0 to 1, about."""
        self._done = max(self._done, min(share, 1.0))
        report_progress(self._words, self._done)


def time_left(words: str) -> bool:
    """Report what is being done, and return whether there is time for more of it.

    For work that has something to hand over whenever it is stopped.
    """
    try:
        report_progress(words)
    except OutOfTimeError:
        return False
    return True


def report_progress(words: str, share: float | None = None) -> None:
    """Report what is being done.

    The words are public. The share of the work is from 0 to 1; None where it is not known.
    """
    _REPORTER.get()(words if share is None else LineWithShare(words, share))
