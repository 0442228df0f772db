"""Public pseudo-random numbers: the same for the same seed, and so for nothing that is secret.

All that draws without protecting anything draws here, and no other module makes a generator:
starting points of optimisers, the populations and the noise of rehearsals and trials, sets of
attributes that a spec draws, the rounding of synthetic records. What must come out the same on
every machine and with every version of a library comes from hashes; the rest is numpy's stream.

Whoever knows the seed knows the numbers: noise that protects anybody is of `measurement.noise`,
has no seed, and no module of `measurement` may import this one.
"""

import hashlib

import numpy as np
from numpy import float64, uint64

from dpquery.arrays import Bits, Floats, Ints

PublicGenerator = np.random.Generator
"""Numpy's generator, where it is public."""
_BLOCK = 256  # bits of one hash of whole numbers
_KEY_BITS = 40  # of the numbers that put members of a group in order
_MANTISSA = 53  # bits of a float in [0, 1)


def public_generator(seed: int) -> PublicGenerator:
    """Return numpy's generator of a public seed; its stream may change with numpy.

    >>> int(public_generator(0).integers(100)) == int(public_generator(0).integers(100))
    True
    """
    return np.random.default_rng(seed)


def public_seed(content: object) -> int:
    """Return a seed that goes with a public value, by SHA-256 of how Python writes it."""
    return int.from_bytes(hashlib.sha256(repr(content).encode()).digest()[:8])


class PublicDraws:
    """Uniform whole numbers from SHA-256 of a seed and a counter; no float is involved.

    >>> draws = PublicDraws(0)
    >>> [draws.below(10) for _ in range(8)]
    [0, 0, 5, 7, 8, 1, 7, 2]
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._counter = seed, 0
        self._bits, self._bits_left = 0, 0

    def below(self, bound: int) -> int:
        """Return a uniform whole number below a bound, by rejection."""
        size = (bound - 1).bit_length()
        while True:
            number = self._take(size)
            if number < bound:
                return number

    def _take(self, size: int) -> int:
        while self._bits_left < size:
            text = f"dpquery sample {self._seed} {self._counter}"
            block = int.from_bytes(hashlib.sha256(text.encode()).digest())
            self._bits, self._bits_left = self._bits << _BLOCK | block, self._bits_left + _BLOCK
            self._counter += 1
        self._bits_left -= size
        number = self._bits >> self._bits_left
        self._bits &= (1 << self._bits_left) - 1
        return number


class PublicChance:
    """Arrays of numbers that follow from a seed, a batch and a name by SHAKE-256."""

    def __init__(self, seed: int, batch: int) -> None:
        self._start = f"dpquery synthetic {seed} {batch} "

    def bits(self, name: str, size: int) -> Bits:
        """Return 64 bits each for so many things. (size,)."""
        digest = hashlib.shake_256(f"{self._start}{name}".encode()).digest(8 * size)
        return np.frombuffer(digest, dtype="<u8").astype(uint64)

    def uniform(self, name: str, size: int) -> Floats:
        """Return numbers in [0, 1). (size,)."""
        return (self.bits(name, size) >> uint64(64 - _MANTISSA)).astype(float64) * 2.0**-_MANTISSA

    def order(self, name: str, groups: Ints) -> Ints:
        """Return an order that shuffles within groups, whose numbers do not fall. (m,)."""
        keys = self.bits(name, len(groups)) >> uint64(64 - _KEY_BITS)
        return np.argsort(groups.astype(uint64) << uint64(_KEY_BITS) | keys, kind="stable")
