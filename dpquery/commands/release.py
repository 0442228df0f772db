"""release() as a straight line: a plan carried out on data.

The data is opened behind one door, measurement.curator, after the ledger has been charged; all
that follows is a function of noisy answers and public inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from dpquery.exceptions import SpecError
from dpquery.measurement.curator import measure
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.mechanisms.choose import chosen_mechanism, remark_on
from dpquery.mechanisms.release_content import LEVEL, Progress, ReleaseRequest
from dpquery.plan_file.plan import plan_and_spec, read_plan_file
from dpquery.plan_file.rap_settings import MechanismChoice
from dpquery.reconstruction.columns.postprocess import parse_columns
from dpquery.releases.folder.write import Sources, check_target, write_release
from dpquery.spec.model import Spec
from dpquery.strategy.noise_kinds import Noise

if TYPE_CHECKING:
    from dpquery.mechanisms.choose import ReleaseMechanism


@dataclass(frozen=True, eq=False)
class ReleaseReport:
    """What was released: public facts only; `free` where the ledger held it already.

    `remark` is what to say of the choice between linear strategies and RAP, if anything.
    `account` is the dataset's and `parent` its parent's, if it has one, as the release left them.
    """

    directory: Path
    spec: Spec
    mechanism: "ReleaseMechanism"
    account: Account
    parent: Account | None
    free: bool
    remark: str = ""


def release(
    data: Path,
    *,
    plan_path: Path,
    ledger_path: Path,
    out: Path,
    epsilon: Fraction,
    delta: Fraction | None = None,
    mechanism: MechanismChoice = "auto",
    noise: Noise | None = None,
    also: Sequence[str] = (),
    confidence: float | None = None,
    release_number: int = 1,
    replace: bool = False,
    progress: Progress = lambda _: None,
) -> ReleaseReport:
    """Carry a plan out on data: choose its mechanism, charge and measure, make answers, write.

    Args:
        data: the CSV file.
        plan_path: the plan.
        ledger_path: must exist and know the dataset.
        out: the release directory; written whole or not at all.
        epsilon: what this release may spend.
        delta: with it; default: the spec's.
        mechanism: a linear strategy, RAP, or what the plan prefers.
        noise: of a linear strategy: one kind, or None for the better one by the plan.
        also: extra columns beside the estimates: see columns.postprocess.parse_columns.
        confidence: level of the noise intervals, 0.95 unless said; RAP has none.
        release_number: another number than before draws fresh noise and pays for it.
        replace: whether a different release in `out` gives way.
        progress: told what is being done.

    Privacy:
        What is written is (epsilon, delta)-DP for the unit and neighbours that the spec declares;
        with all earlier releases of the dataset it stays within the cap on record.
    """
    content = _bytes_of(plan_path)
    plan, spec = plan_and_spec(content, plan_path)
    delta = spec.privacy.delta if delta is None else delta
    terms = ReleaseRequest(epsilon, delta, noise, parse_columns(also), release_number, confidence)
    chosen = chosen_mechanism(plan, spec, terms, mechanism=mechanism)
    check_target(out, key=chosen.query.key, replace=replace)
    with Ledger.open(ledger_path, create=False) as ledger:
        ledger.check_replaced(out)
        measured = measure(data, chosen.query, ledger=ledger, progress=progress)
    made = chosen.make(measured, level=confidence or LEVEL, progress=progress)
    write_release(
        out,
        spec=spec,
        answers=made.answers,
        manifest=made.manifest,
        replace=replace,
        sources=Sources(content, measured.values, chosen.measured),
        relaxed=made.relaxed,
        progress=lambda done: progress(f"writing answers: {done / spec.queries:.0%}"),
    )
    remark = remark_on(plan, terms, mechanism=mechanism)
    return ReleaseReport(
        out, spec, chosen, measured.account, measured.parent, measured.stored, remark
    )


def _bytes_of(plan_path: Path) -> bytes:
    try:
        return read_plan_file(plan_path)
    except OSError as error:
        raise SpecError(
            f"{plan_path} cannot be read: {error.strerror}; run `dpquery plan workload.yaml` "
            "first, or name the plan with --plan"
        ) from None
