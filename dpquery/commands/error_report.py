"""error_report() as a straight line: the errors of a release, from its folder alone.

release folder -> manifest and errors -> page with plots
"""

from pathlib import Path

from dpquery.commands.arguments import FilePath, as_path
from dpquery.commands.defaults import RELEASE_PATH, REPORT_PATH
from dpquery.releases.report.figures import Report, load_report
from dpquery.releases.report.page import REPORT_MARK, write_html
from dpquery.untrusted.files import check_place


def error_report(
    directory: FilePath = RELEASE_PATH, *, html: FilePath | None = REPORT_PATH
) -> Report:
    """Return the errors of a release's items, and write a page with plots.

    Args:
        directory: the folder of a release, or of answers to later questions.
        html: where the page goes; None writes none.

    Raises:
        SpecError: the folder is not a release, or is damaged.
        PlanConflictError: another file is in the way of the page.
    """
    if html is not None:
        check_place(as_path(html), mark=REPORT_MARK)
    report = load_report(as_path(directory))
    if html is not None:
        write_html(report, Path(html))
    return report
