"""Work on several kinds of noise: one after another, or the last of them in another process."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from dpquery.progress import report_progress

State = TypeVar("State")
Outcome = TypeVar("Outcome")


def other_process() -> ProcessPoolExecutor:
    """Return another process to work in."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def side_by_side(
    work: Callable[[State], Outcome], states: Sequence[State], beside: ProcessPoolExecutor | None
) -> list[Outcome]:
    """Return what is made of each state: of the last in another process, where there is one."""
    if beside is None:
        return [work(state) for state in states]
    other = beside.submit(work, states[-1])
    done = [*map(work, states[:-1])]
    report_progress("waiting for the other kind of noise")
    return [*done, other.result()]
