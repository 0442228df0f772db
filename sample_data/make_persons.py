"""Write persons.csv: 50,000 synthetic people to try dpquery on.

No row describes a real person and none is derived from one. The state table below holds rounded
public figures near the 2020 census; every other curve is an invention that looks plausible. Rows
are drawn independently, so they do not form households, and a row is the unit to protect. Income
depends on age, sex, work, state and hardship, but by construction not on race.

The last columns are yes/no signs of deprivation: `poverty` (income below a poverty line),
`unemployed` (at some time in the last twelve months), `homeless` (likewise) and `low_net_worth`.
They share one hidden hardship score, which also lowers income, so they are correlated.

The blemishes are meant: some incomes are blank, refused or negative, some ages are not ages.

    python sample_data/make_persons.py      # rewrites persons.csv beside this file, byte for byte
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy import bool_, float64, int64, str_
from numpy.typing import NDArray

ROWS = 50_000
SEED = 20200401
MAX_AGE = 110
PATH = Path(__file__).with_name("persons.csv")

# state, population (thousands), median age, income level (nation = 100), then percent of the
# population: Hispanic; black, American Indian, Asian, Pacific Islander and other race alone; two
# or more races. The rest is white alone.
STATES = """
Alabama,5024,39.4,83,5.3,25.8,0.7,1.5,0.1,2.7,5.1
Alaska,733,35.0,105,6.8,3.0,15.2,6.0,1.7,2.5,12.2
Arizona,7152,38.5,93,30.7,4.7,4.5,3.6,0.2,12.7,13.9
Arkansas,3012,38.4,80,8.5,15.1,0.9,1.7,0.5,4.5,7.1
California,39538,37.3,112,39.4,5.7,1.6,15.4,0.4,21.2,14.6
Colorado,5774,37.3,112,21.9,4.1,1.3,3.5,0.2,8.0,12.3
Connecticut,3606,41.1,125,17.3,10.8,0.4,4.8,0.1,8.3,9.2
Delaware,990,41.4,102,10.5,22.1,0.5,4.3,0.1,5.0,7.7
District of Columbia,690,34.4,160,11.3,41.4,0.5,4.9,0.1,5.4,8.1
Florida,21538,42.4,97,26.5,15.1,0.4,3.0,0.1,7.3,16.5
Georgia,10712,37.4,94,10.5,31.0,0.5,4.5,0.1,5.2,6.9
Hawaii,1455,40.2,100,9.5,1.6,0.3,37.2,10.8,1.9,25.3
Idaho,1839,37.1,88,13.0,0.9,1.4,1.5,0.2,5.0,8.9
Illinois,12813,38.8,104,18.2,14.1,0.8,5.9,0.1,8.9,8.9
Indiana,6786,37.9,90,8.2,9.6,0.4,2.5,0.1,4.0,6.3
Iowa,3190,38.5,95,6.8,4.1,0.5,2.4,0.2,2.8,5.6
Kansas,2938,37.3,96,13.0,5.7,1.1,2.9,0.1,4.9,9.5
Kentucky,4506,39.1,85,4.6,8.0,0.3,1.6,0.1,2.0,5.5
Louisiana,4658,37.6,84,6.9,31.4,0.7,1.9,0.1,3.1,5.9
Maine,1362,44.8,95,2.0,1.9,0.6,1.2,0.1,0.8,4.7
Maryland,6177,39.3,118,11.8,29.5,0.5,6.8,0.1,6.3,8.1
Massachusetts,7030,39.9,125,12.6,7.0,0.3,7.2,0.1,7.2,8.7
Michigan,10077,40.0,95,5.6,13.7,0.6,3.3,0.1,2.2,6.3
Minnesota,5706,38.5,106,6.1,7.0,1.2,5.3,0.1,3.0,6.1
Mississippi,2961,38.3,74,3.6,36.6,0.6,1.1,0.1,1.7,3.9
Missouri,6155,38.9,92,4.9,11.4,0.5,2.2,0.2,1.9,6.9
Montana,1084,40.1,93,4.2,0.5,6.2,0.8,0.1,1.3,6.6
Nebraska,1962,36.9,97,12.0,4.9,1.2,2.7,0.1,5.4,7.3
Nevada,3105,38.6,92,28.7,9.8,1.4,8.8,0.8,14.0,14.0
New Hampshire,1378,43.1,113,4.3,1.5,0.2,2.6,0.1,1.7,5.6
New Jersey,9289,40.3,122,21.6,13.1,0.6,10.2,0.1,11.3,9.7
New Mexico,2118,38.6,83,47.7,2.1,10.0,1.8,0.1,15.0,19.9
New York,20201,39.4,112,19.5,14.8,0.7,9.6,0.1,10.9,8.7
North Carolina,10439,39.2,93,10.7,20.5,1.2,3.3,0.1,5.9,6.8
North Dakota,779,35.5,102,4.3,3.4,5.0,1.7,0.1,1.5,5.3
Ohio,11799,39.6,94,4.4,12.5,0.3,2.5,0.1,1.9,5.8
Oklahoma,3959,37.0,86,11.9,7.3,8.4,2.3,0.2,5.4,12.8
Oregon,4237,39.9,100,13.9,2.0,1.5,4.6,0.5,6.3,10.4
Pennsylvania,13003,40.9,100,8.1,10.9,0.2,3.9,0.1,3.9,6.0
Rhode Island,1097,40.3,102,16.6,5.7,0.7,3.6,0.1,9.4,9.3
South Carolina,5118,40.1,90,6.9,25.0,0.5,1.8,0.1,3.5,5.8
South Dakota,887,37.6,95,4.4,2.0,8.8,1.5,0.1,1.6,5.4
Tennessee,6911,39.0,90,6.9,15.8,0.4,2.0,0.1,3.6,6.0
Texas,29146,35.2,95,39.3,12.2,1.0,5.4,0.1,13.6,17.6
Utah,3272,31.3,92,15.1,1.2,1.3,2.4,1.1,7.0,8.7
Vermont,643,43.0,100,2.4,1.4,0.4,1.8,0.1,0.8,5.8
Virginia,8631,38.8,110,10.5,18.6,0.5,7.1,0.1,5.2,8.2
Washington,7705,38.0,115,13.7,4.0,1.6,9.5,0.8,6.9,10.9
West Virginia,1794,42.9,79,1.9,3.7,0.2,0.8,0.1,0.6,4.7
Wisconsin,5894,40.1,98,7.6,6.4,1.0,3.0,0.1,3.1,6.1
Wyoming,577,38.8,98,10.2,0.9,2.4,0.9,0.1,3.5,6.8
"""

RACES = ("white", "black", "american_indian", "asian", "pacific_islander", "other_race")
# How readily each race is reported beside another one.
MIXING = np.array([1.0, 0.45, 1.1, 0.6, 0.7, 2.0])
# How much likelier someone of this race (last: two or more) is to be Hispanic, as odds.
HISPANIC_ODDS = np.array([1.0, 0.5, 10.0, 0.2, 1.5, 150.0, 12.0])

EMPLOYMENT = np.array(["employed", "unemployed", "not in labor force", "under 16"])
EMPLOYED, UNEMPLOYED, NOT_IN_LABOR_FORCE, UNDER_16 = range(4)

# Percent of each age in each relationship to the householder, and the least age allowed.
RELATION_AGES = (0, 15, 18, 22, 27, 35, 50, 65, 75, 85, 95)
RELATIONS: dict[str, tuple[int, tuple[float, ...]]] = {
    "householder": (16, (0, 0.5, 5, 23, 38, 47, 53, 58, 62, 63, 50)),
    "spouse": (18, (0, 0, 1, 6, 20, 34, 35, 34, 27, 15, 5)),
    "unmarried partner": (18, (0, 0, 3, 9, 10, 6, 3.5, 2, 1, 0.5, 0.2)),
    "child": (0, (88, 86, 75, 40, 20, 7, 4, 1.5, 0.3, 0, 0)),
    "grandchild": (0, (7, 6, 5, 3, 1, 0.3, 0, 0, 0, 0, 0)),
    "parent": (35, (0, 0, 0, 0, 0, 0.2, 1, 2, 4, 9, 15)),
    "other relative": (0, (4, 5, 5, 7, 5, 3, 2, 1.5, 1.5, 2, 2.5)),
    "roommate": (16, (0, 1, 3, 9, 5, 2, 1.2, 0.8, 0.4, 0.3, 0.2)),
    "group quarters": (0, (0.2, 0.6, 7, 5, 1.6, 1.3, 1, 1, 2, 8, 25)),
}


def main() -> None:
    """Rewrite persons.csv beside this file."""
    PATH.write_bytes(render().encode())


def render() -> str:
    """Return the whole CSV as text."""
    dice = _Dice()
    table = _state_table()
    state = dice.pick(table[:, 0])
    race = _race(dice, table, state)
    hispanic = dice.event(_hispanic_chance(table)[state, _race_alone(race)])
    age = _age(dice, table, state, hispanic)
    female = dice.event(np.interp(age, [0, 30, 55, 75, 88, 97, 105], [49, 50, 51, 55, 65, 76, 84]))
    relation = _relation(dice, age)
    hardship = dice.normal()
    work = _employment(dice, age, female, hardship, relation == "group quarters")
    income = _income(dice, age, female, work, hardship, table[state, 2] / 100)
    out = {
        "state": _state_names()[state],
        "age": _age_text(dice, age),
        "sex": np.where(female, "Female", "Male"),
        **{name: _yes_no(race[:, i]) for i, name in enumerate(RACES)},
        "hispanic": _yes_no(hispanic),
        "relationship": relation,
        "income": _income_text(dice, age, income),
        "employment": EMPLOYMENT[work],
        **_deprivation(dice, age, work, hardship, income),
    }
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(out)
    writer.writerows(zip(*(column.tolist() for column in out.values()), strict=True))
    return file.getvalue()


class _Dice:
    """Random columns of ROWS entries, from raw PCG64 words: numpy keeps those fixed for good."""

    def __init__(self) -> None:
        self._words = np.random.PCG64(SEED)

    def uniform(self) -> NDArray[float64]:
        return (self._words.random_raw(ROWS) >> np.uint64(11)).astype(float64) * 2.0**-53

    def normal(self) -> NDArray[float64]:
        radius: NDArray[float64] = np.sqrt(-2 * np.log1p(-self.uniform()))
        height: NDArray[float64] = np.cos(2 * np.pi * self.uniform())
        return radius * height

    def event(self, percent: NDArray[float64] | float) -> NDArray[bool_]:
        return 100 * self.uniform() < percent

    def pick(self, weights: NDArray[float64]) -> NDArray[int64]:
        """Return a column number for every row; weights: (k,) or (ROWS, k), any positive sum."""
        cumulative = np.cumsum(weights, axis=-1)
        target = self.uniform() * cumulative[..., -1]
        if weights.ndim == 1:
            return np.searchsorted(cumulative, target, side="right")
        place: NDArray[int64] = (target[:, None] >= cumulative).sum(axis=1)
        return place


def _state_rows() -> Iterator[list[str]]:
    return (line.split(",") for line in STATES.split("\n") if line)


def _state_names() -> NDArray[str_]:
    return np.array([row[0] for row in _state_rows()])


def _state_table() -> NDArray[float64]:
    """Return (51, 10): the numbers of STATES."""
    return np.array([[float(cell) for cell in row[1:]] for row in _state_rows()])


def _race_shares(table: NDArray[float64]) -> NDArray[float64]:
    """Return (51, 7): percent of each race alone, in the order of RACES, and of two or more."""
    return np.column_stack([100 - table[:, 4:].sum(axis=1), table[:, 4:]])


def _race(dice: _Dice, table: NDArray[float64], state: NDArray[int64]) -> NDArray[bool_]:
    """Return (ROWS, 6): which races a person reports, one at least."""
    shares = _race_shares(table)
    alone = dice.pick(shares[state])
    several = alone == len(RACES)
    # Square roots flatten the shares: small groups take part in more mixtures than their size.
    weights = (MIXING * np.sqrt(shares[:, : len(RACES)]))[state]
    race = np.zeros((ROWS, len(RACES)), dtype=bool)
    race[np.arange(ROWS), np.where(several, dice.pick(weights), alone)] = True
    for member in (several, several & dice.event(7)):
        extra = dice.pick(np.where(race, 0, weights))
        race[member, extra[member]] = True
    return race


def _race_alone(race: NDArray[bool_]) -> NDArray[int64]:
    """Return the only race of each person, or 6 for two or more."""
    return np.where(race.sum(axis=1) > 1, len(RACES), race.argmax(axis=1))


def _hispanic_chance(table: NDArray[float64]) -> NDArray[float64]:
    """Return (51, 7): percent Hispanic by state and race, meeting every state's share."""
    shares, goal = _race_shares(table), table[:, 3]
    chance: NDArray[float64]
    low, high = np.full(len(table), 1e-9), np.full(len(table), 1e3)
    for _ in range(60):
        middle = np.sqrt(low * high)
        odds = middle[:, None] * HISPANIC_ODDS
        chance = 100 * odds / (1 + odds)
        above = (shares * chance).sum(axis=1) / 100 > goal
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return chance


def _age(
    dice: _Dice, table: NDArray[float64], state: NDArray[int64], hispanic: NDArray[bool_]
) -> NDArray[int64]:
    """Return ages 0..MAX_AGE: the nation's pyramid tilted towards each state's median age."""
    knots = [0, 5, 12, 20, 30, 40, 47, 58, 63, 70, 75, 80, 85, 90, 95, 100, 105, 110]
    people = [3750.0, 3950, 4250, 4300, 4650, 4250, 4000, 4400, 4150]
    people += [3300, 2400, 1600, 1050, 560, 200, 35, 4, 0.5]
    ages = np.arange(MAX_AGE + 1)
    pyramid = np.interp(ages, knots, people)
    # 529 is the variance of age: a tilt of 1/529 moves the mean by about one year.
    shift = table[:, 1, None] - 38.8 - np.array([0, 8])
    tilted = pyramid * np.exp(shift[:, :, None] / 529 * (ages - 38.8))
    return dice.pick(tilted[state, hispanic.astype(int)])


def _relation(dice: _Dice, age: NDArray[int64]) -> NDArray[str_]:
    weights = np.column_stack(
        [
            np.where(age < least, 0, np.interp(age, RELATION_AGES, percents))
            for least, percents in RELATIONS.values()
        ]
    )
    return np.array(list(RELATIONS))[dice.pick(weights)]


def _employment(
    dice: _Dice,
    age: NDArray[int64],
    female: NDArray[bool_],
    hardship: NDArray[float64],
    institution: NDArray[bool_],
) -> NDArray[int64]:
    """Return an index into EMPLOYMENT for every row."""
    knots = [16, 20, 25, 35, 50, 58, 62, 67, 75, 85, 95]
    men = np.interp(age, knots, [32, 70, 88, 91, 87, 77, 60, 34, 17, 6, 1])
    women = np.interp(age, knots, [34, 68, 78, 77, 76, 66, 50, 26, 11, 3, 0.5])
    willing = np.where(female, women, men) * np.where(institution, 0.35, 1) - 4 * hardship
    seeking = np.interp(age, [16, 20, 25, 35, 65], [14, 9, 6, 4, 3.5]) * np.exp(
        0.7 * hardship - 0.2
    )
    in_labor_force = dice.event(willing)
    work = np.where(dice.event(seeking), UNEMPLOYED, EMPLOYED)
    work = np.where(in_labor_force, work, NOT_IN_LABOR_FORCE)
    return np.where(age < 16, UNDER_16, work)


def _income(
    dice: _Dice,
    age: NDArray[int64],
    female: NDArray[bool_],
    work: NDArray[int64],
    hardship: NDArray[float64],
    level: NDArray[float64],
) -> NDArray[float64]:
    """Return yearly income in whole dollars, rounded as people and surveys round it."""
    luck = 0.58 * dice.normal() - 0.4 * hardship
    knots = [16, 20, 25, 35, 48, 60, 70, 85]
    pay = np.interp(age, knots, [6e3, 17e3, 33e3, 48e3, 57e3, 54e3, 36e3, 22e3])
    pay *= np.where(female, 0.8, 1.05) * level * np.exp(luck)
    # One earner in fifty has a Pareto tail on top: the few very large incomes of any real file.
    pay *= np.where(dice.event(2), (1 - dice.uniform()) ** (-1 / 2.2), 1)
    pension = np.where(female, 20e3, 27e3) * level * np.exp(0.8 * luck)
    other = 8e3 * np.exp(1.2 * luck) * ~dice.event(np.where(work == UNEMPLOYED, 20, 50))
    idle = np.where((age >= 62) & ~dice.event(4), pension, other)
    amount = np.where(work == EMPLOYED, pay, np.where(work == UNEMPLOYED, 1.4 * other, idle))
    amount = np.where(age < 16, 0, amount)
    step = np.select([amount < 1e3, amount < 5e4], [10, 100], 1000)
    rounded: NDArray[float64] = np.round(amount / step) * step
    return rounded


def _deprivation(
    dice: _Dice,
    age: NDArray[int64],
    work: NDArray[int64],
    hardship: NDArray[float64],
    income: NDArray[float64],
) -> dict[str, NDArray[str_]]:
    """Return the four yes/no columns."""
    # Incomes are personal, so someone without any may live off the household: hardship decides.
    shortfall = np.clip(1 - income / 24e3, -1, 1) * (age >= 16) + 0.4 * (age < 16)
    poor = dice.event(_percent(-3.1 + 2.0 * shortfall + 1.5 * hardship))
    jobless = (work == UNEMPLOYED) | ((work == EMPLOYED) & dice.event(3 * np.exp(0.8 * hardship)))
    homeless = dice.event(_percent(-6.3 + 1.1 * hardship + 1.2 * poor + 0.8 * jobless))
    youth = np.interp(age, [0, 20, 30, 65, 90], [0.1, 0.9, 0.7, -0.6, -0.8])
    low_worth = dice.event(_percent(-1.9 + youth + 1.2 * hardship + 1.1 * poor + 1.5 * homeless))
    return {
        "poverty": _yes_no(poor),
        "unemployed": _yes_no(jobless),
        "homeless": _yes_no(homeless),
        "low_net_worth": _yes_no(low_worth),
    }


def _percent(log_odds: NDArray[float64]) -> NDArray[float64]:
    chance: NDArray[float64] = 100 / (1 + np.exp(-log_odds))
    return chance


def _age_text(dice: _Dice, age: NDArray[int64]) -> NDArray[str_]:
    """Write ages as text; about one in two thousand is not an age."""
    text = age.astype("U7")
    for blemish, percent in (("unknown", 0.025), ("", 0.015), ("999", 0.01)):
        text[dice.event(percent)] = blemish
    return text


def _income_text(dice: _Dice, age: NDArray[int64], income: NDArray[float64]) -> NDArray[str_]:
    """Write incomes as text; some adults leave it blank, refuse, or report a loss."""
    adult = age >= 16
    losses = adult & (income > 0) & dice.event(0.15)
    text = np.where(losses, -income, income).astype(int64).astype("U12")
    text[adult & dice.event(3)] = ""
    text[adult & dice.event(0.2)] = "refused"
    return text


def _yes_no(flag: NDArray[bool_]) -> NDArray[str_]:
    return np.where(flag, "yes", "no")


if __name__ == "__main__":
    main()
