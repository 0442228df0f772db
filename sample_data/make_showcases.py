"""Write the made-up records of the showcases, and the made-up areas that they lie in.

Nobody in them exists, and no figure is taken from a real release: the records have the columns, and
about the sizes, of what an office holds. The same name gives the same file with the same numpy.

    python sample_data/make_showcases.py births births.csv   # the records of one showcase
    python sample_data/make_showcases.py areas   # rewrites tracts.csv, postcodes.csv in workloads/
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy import float64
from numpy.typing import NDArray

WORKLOADS = Path(__file__).parents[1] / "workloads"
STATES = {"01": "Northland", "02": "Midland", "03": "Southland"}
COUNTIES, TRACTS = 6, 8  # of a state, of a county
POSTCODES = 22  # of a county
PERSONS, GRADUATES, BIRTHS, DEVICES = 200_000, 60_000, 165_915, 400_000
"""Records: the births are as many as Israel published for 2014; the other numbers are round."""
RACES = ("white", "black", "american_indian", "asian", "pacific_islander", "other_race")
QUARTERS = (
    "household",
    "correctional",
    "juvenile",
    "nursing",
    "other institution",
    "student housing",
    "military",
    "other",
)
INSTITUTIONS = (
    "Northland State",
    "Northland Tech",
    "Midland University",
    "Midland College",
    "Lakeside",
    "Hillcrest",
    "Southland State",
    "Southland Arts",
)
FIELDS = {
    "education": 38,
    "arts": 34,
    "humanities": 36,
    "social sciences": 42,
    "business": 52,
    "biology": 41,
    "physical sciences": 47,
    "computing": 72,
    "engineering": 70,
    "health": 58,
}
"""Fields of study, with what half of the graduates earn at most, in thousands a year."""


def tracts() -> list[tuple[str, ...]]:
    """Return the lines of tracts.csv, its header first."""
    lines: list[tuple[str, ...]] = [("tract", "county", "county_label", "state", "state_label")]
    for state, name in STATES.items():
        for c in range(1, COUNTIES + 1):
            county = f"{state}{2 * c - 1:03d}"
            label = f"{name} county {c}"
            lines += [
                (f"{county}{100 * t:06d}", county, label, state, name) for t in range(1, TRACTS + 1)
            ]
    return lines


def postcodes() -> list[tuple[str, ...]]:
    """Return the lines of postcodes.csv, its header first."""
    lines: list[tuple[str, ...]] = [("postcode", "county", "county_label", "state", "state_label")]
    for state, name in STATES.items():
        for c in range(1, COUNTIES + 1):
            county = f"{state}{2 * c - 1:03d}"
            codes = (f"{state}{c}{p:02d}" for p in range(1, POSTCODES + 1))
            lines += [(code, county, f"{name} county {c}", state, name) for code in codes]
    return lines


def redistricting() -> pd.DataFrame:
    """Return persons by tract, age of voting, Hispanic origin, race and kind of quarters."""
    rng = np.random.default_rng(20200401)
    areas = [line[0] for line in tracts()[1:]]
    tract = rng.choice(len(areas), size=PERSONS, p=_shares(rng, len(areas), 0.5))
    leaning = rng.dirichlet([3, 1.2, 0.1, 0.5, 0.05, 0.6], size=len(areas)).cumsum(axis=1)
    first = (leaning[tract] < rng.random(PERSONS)[:, None]).sum(axis=1)
    races = np.eye(6, dtype=bool)[np.minimum(first, 5)]
    races[np.arange(PERSONS), rng.integers(6, size=PERSONS)] |= rng.random(PERSONS) < 0.09
    of_area = rng.beta(1, 5, size=len(areas))
    quarters = rng.choice(
        8, size=PERSONS, p=[0.974, 0.006, 0.001, 0.005, 0.001, 0.009, 0.001, 0.003]
    )
    answers = {name: _yes(races[:, i]) for i, name in enumerate(RACES)}
    return pd.DataFrame(
        {
            "tract": np.array(areas)[tract],
            "adult": _yes(rng.random(PERSONS) < 0.78),
            "hispanic": _yes(rng.random(PERSONS) < of_area[tract]),
            **answers,
            "quarters": np.array(QUARTERS)[quarters],
        }
    )


def earnings() -> pd.DataFrame:
    """Return graduates by institution and field, with what they earn five years later."""
    rng = np.random.default_rng(2019)
    places, fields = len(INSTITUTIONS), len(FIELDS)
    at = rng.choice(places, size=GRADUATES, p=_shares(rng, places, 0.5))
    studied = rng.choice(fields, size=GRADUATES, p=_shares(rng, fields, 0.4))
    half = np.array(list(FIELDS.values()))[studied] * np.linspace(0.85, 1.2, places)[at]
    earned = 1000 * half * np.exp(0.45 * rng.standard_normal(GRADUATES))
    text = pd.Series(earned.round().astype(int).astype(str))
    text[rng.random(GRADUATES) < 0.03] = ""  # nobody knows
    return pd.DataFrame(
        {
            "institution": np.array(INSTITUTIONS)[at],
            "field": np.array(list(FIELDS))[studied],
            "earnings": text,
        }
    )


def births() -> pd.DataFrame:
    """Return single births with six columns as those of Israel's release for 2014."""
    rng = np.random.default_rng(2014)
    weeks = np.clip(np.rint(41.5 - rng.gamma(2.2, 0.95, BIRTHS)), 24, 42).astype(int)
    boy = rng.random(BIRTHS) < 0.513
    weight = 3290 + 130 * (weeks - 39.3) + 110 * boy + 380 * rng.standard_normal(BIRTHS)
    age = np.clip(np.rint(rng.normal(30.3, 5.4, BIRTHS)), 15, 50).astype(int)
    parity = np.minimum(1 + rng.poisson(np.maximum(0.2, 0.16 * (age - 19))), 12)
    return pd.DataFrame(
        {
            "month": rng.integers(1, 13, size=BIRTHS),
            "mother_age": age,
            "parity": parity,
            "weeks": weeks,
            "sex": np.where(boy, "M", "F"),
            "weight": np.clip(np.rint(weight), 400, 5900).astype(int),
        }
    )


def broadband() -> pd.DataFrame:
    """Return devices by postal code, and whether they were seen at broadband speed."""
    rng = np.random.default_rng(25)
    codes = [line[0] for line in postcodes()[1:]]
    code = rng.choice(len(codes), size=DEVICES, p=_shares(rng, len(codes), 1.1))
    share = rng.beta(1.2, 1.6, size=len(codes))
    return pd.DataFrame(
        {"postcode": np.array(codes)[code], "fast": _yes(rng.random(DEVICES) < share[code])}
    )


def _shares(rng: np.random.Generator, n: int, spread: float) -> NDArray[float64]:
    """Return uneven shares that add up to one."""
    sizes = np.exp(spread * rng.standard_normal(n))
    return np.asarray(sizes / sizes.sum())


def _yes(answers: NDArray[np.bool_]) -> NDArray[np.str_]:
    return np.where(answers, "yes", "no")


RECORDS: dict[str, Callable[[], pd.DataFrame]] = {
    "redistricting": redistricting,
    "earnings": earnings,
    "births": births,
    "broadband": broadband,
}


def main() -> None:
    """Write what the command line names."""
    if sys.argv[1:] == ["areas"]:
        for name, lines in (("tracts", tracts()), ("postcodes", postcodes())):
            text = "".join(",".join(line) + "\n" for line in lines)
            (WORKLOADS / f"{name}.csv").write_text(text, encoding="utf-8")
        return
    name, out = sys.argv[1], Path(sys.argv[2])
    out.parent.mkdir(parents=True, exist_ok=True)
    RECORDS[name]().to_csv(out, index=False)


if __name__ == "__main__":
    main()
