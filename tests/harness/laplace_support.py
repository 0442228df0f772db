"""The law of c'y under Laplace noise, slowly: what noise intervals are held against."""

import numpy as np

LEVELS = (0.5, 0.6, 0.8, 0.9, 0.95, 0.99, 0.999)
NARROW = 1e-4  # numerical


def exact_tails(C, widths):
    """P(|c'y| > width) for every row c of C and its width, y of unit variance.

    P(X > q) is an integral of E exp(s X) exp(-s q) / s along a hyperbola around the poles.
    """
    squares = C**2
    scale = np.sqrt(squares.sum(axis=1, keepdims=True))
    shares, q = squares / scale**2, np.asarray(widths)[:, None] / scale
    pole = np.sqrt(2 / shares.max(axis=1, keepdims=True))
    saddle = pole * np.minimum(0.6, 0.6 * (q + 1 / (q + 0.5)) / pole)
    size = np.minimum(saddle, pole - 0.6 * saddle)
    end = np.arccosh(1 + 45 / (q * size))
    u = (np.arange(200) + 0.5) / 200 * end
    s = saddle + size * (np.cosh(u) - 1) + 1.7j * size * np.sinh(u)
    steps = size * (np.sinh(u) + 1.7j * np.cosh(u)) * end / 200
    logs = -s * q
    for column in shares.T:
        logs -= np.log(1 - column[:, None] * s**2 / 2)
    return 2 / np.pi * (np.exp(logs) * steps / s).imag.sum(axis=1)


def check_half_widths(C, half, *, level, most=1.02, what=""):
    """Half widths are at least those of the exact law of C y, and at most 2 % wider."""
    used = np.any(C != 0, axis=1)
    C, half = C[used], np.asarray(half)[used]
    narrow = exact_tails(C, half * (1 + NARROW)) / (1 - level)
    wide = exact_tails(C, half / most) / (1 - level)
    assert narrow.max(initial=0.0) <= 1 + 1e-9, what
    assert wide.min(initial=2.0) >= 1 - 1e-9, what
