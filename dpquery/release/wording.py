"""Numbers as people read them, the same in the statement, on the screen and in the report."""


def figure(value: float) -> str:
    """Return a figure with four significant digits at most, thousands separated.

    >>> figure(12345.678), figure(0.012345), figure(14.0)
    ('12,346', '0.01235', '14')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """Return a share in percent, two digits of it.

    >>> percent(0.0213), percent(0.00004), percent(0.978), percent(15.3), percent(0)
    ('2.1 %', 'under 0.1 %', '98 %', '1,530 %', '0 %')
    """
    if 0 < share < 0.001:
        return "under 0.1 %"
    value = 100 * share
    return f"{value:,.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def within(error: float | None) -> str:
    """Return a relative error; None is one without bound.

    >>> within(0.02), within(0.0001), within(150.0), within(None)
    ('±2.0 %', 'under ±0.1 %', 'over ±1,000 %', 'unbounded')
    """
    if error is None:
        return "unbounded"
    if error > 10:
        return "over ±1,000 %"
    return "under ±0.1 %" if 0 < error < 0.001 else f"±{percent(error)}"


def count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count(1, "row"), count(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def power(value: float) -> str:
    """Return a small number without a zero in its exponent.

    >>> power(1e-9)
    '1e-9'
    """
    return f"{value:g}".replace("e-0", "e-")
