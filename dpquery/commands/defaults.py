"""What a command takes where nothing is said, and the limits of what can be said.

The command line and the commands as functions have their defaults and limits from here, and the
help texts name them. Light to load: the command line needs it before any command runs.
"""

from typing import Final

# --- places ---------------------------------------------------------------------------------------
SPEC_PATH = "workload.yaml"
PLAN_PATH = "dpquery.plan"
RELEASE_PATH = "release"
ANSWERS_PATH = "answers"
PACKAGE_PATH = "package"
REPORT_PATH = "report.html"
SYNTHETIC_PATH = "synthetic.csv"
REPLICATES_PATH = "replicates"

# --- plans ----------------------------------------------------------------------------------------
OBJECTIVE: Final = "rmse"
MECHANISM_CHOICE: Final = "auto"  # of a plan and of a release
DEFAULT_SEED = 0  # of optimisers' starts, and of the rounding of synthetic records
TIME_LIMIT = 60.0  # CPU seconds for each kind of noise
FUNCTION_JOBS = 1  # processes: a script that asks for more must guard its main part
SHELL_JOBS = 2
MOST_JOBS = 2  # one for each kind of noise

# --- releases and answers -------------------------------------------------------------------------
NOISE_CHOICE: Final = "auto"
RELEASE_NUMBER = 1
LEVEL = 0.95  # of noise intervals
LEVELS = (0.5, 0.9999)  # that can be had
MEMORIES = (16 * 10**6, 16 * 10**12)  # bytes for the rows of persons that can be asked for
MAX_VALUES = 1  # of a person that count in a discovery
CELLS = 100  # of the table that a max_rows is chosen for
REPLICATES, MOST_REPLICATES = 100, 10_000  # draws of the noise of all answers
LARGEST_NUMBER = 10**9  # of a release, and of synthetic records

# --- the audit ------------------------------------------------------------------------------------
AUDIT_EPSILON = "1"  # of the releases of a user's own plan
