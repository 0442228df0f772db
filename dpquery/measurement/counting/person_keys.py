"""Keys of persons: ids of any length as 128 bits, in numpy and without one object an id.

Ids are compared as values are (`value_codes`): stripped of white space, as numbers where they are
some, so that `1` in one file and `1.0` in another are one person, and letter by letter otherwise.
So each id has one name, and names become keys, in two steps, with numbers drawn from the operating
system anew for every count.

1.  A block of 128 bits. A name of up to 15 bytes is the block itself, with its length in the last
    byte. A longer one is hashed: bits 32 to 63 of a + b l + c_1 x_1 + c_2 x_2 + ... modulo 2^64,
    where l is the name's length, x_i are its 32-bit words and a, b, c_i are random 64-bit numbers
    [LK14]. Of two different names l or some x_i differ, by d = 2^t (odd) with t < 32. So the sums
    differ by a number that is uniform on a residue class of 2^t, whatever the one sum is, and that
    is uniform too, by a: n of these bits are the same with a chance of 2^-n. Four such hashes with
    numbers of their own fill the block but for its last byte, which is 255: 120 bits.
2.  Two rounds of a Feistel network, which no two blocks leave alike, spread the block evenly, so
    that persons may be sorted and parted by the first bits of their keys.

So two persons have the same key never if one of the names has up to 15 bytes, and otherwise with a
chance of 2^-120: of P persons with long names any two, with a chance below P^2 / 2^121, which is
2^-67 for 10^8 persons. They would share one limit of rows, and one person more could then move a
table by twice max_rows at most.
"""

import os
from collections.abc import Callable
from hashlib import blake2b
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpquery.arrays import Bits, Bools, Ints
from dpquery.measurement.counting.value_texts import texts_of
from dpquery.spec.numbers import LONGEST, decimal_text, magnitude, number

RandomBytes = Callable[[int], bytes]

_SHORT = 15  # bytes of an id that fit a block beside their number
_COMMON = 64  # words of an id that are read from all ids at once; what is longer, id by id
_HASHED = 255  # in place of that number
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
"""What is left of a little-endian word that holds so many bytes."""

# A text that surely is its own name: its ends are in ASCII, and it is a whole number as `name_of`
# writes one, or none for its first character, another one, or a sign behind a digit.
_NAME = (
    "(?s)^(?:0|[1-9][0-9]{0,40}|[!-*/:-~](?:.*[!-~])?"
    "|(?:[0-9+,.-][0-9+,.eE-]*[!-*/:-DF-df-~]|[0-9.,]+[+-])(?:.*[!-~])?)$"
)
_WHOLE = r"^\+?0*([0-9]{1,40})(?:[MARK]0*)?$"  # of at most LONGEST characters


def texts_of_ids(ids: pa.Array, decimal: str) -> pa.Array:
    """Return the text of each id, as `texts_of` does; an empty one for nan among numbers."""
    texts = texts_of(ids, decimal)
    no_number = pa.types.is_floating(ids.type)
    return pc.if_else(pc.equal(texts, b"nan"), b"", texts) if no_number else texts


def person_names(ids: pa.Array, decimal: str) -> pa.Array:
    """Return the name of each id, as bytes: one for all spellings of a number; empty for no id.

    Args:
        ids: of any type that `texts_of` takes.
        decimal: the mark of decimals that the spec declares.
    """
    texts = texts_of_ids(ids, decimal)
    if pa.types.is_integer(ids.type):
        return texts
    # Called text, so that Arrow strips it; nothing looks at its characters.
    called_text = pa.Array.from_buffers(
        pa.large_string(), len(texts), texts.buffers(), offset=texts.offset
    )
    names = pc.ascii_trim_whitespace(called_text).cast(pa.large_binary())
    odd = pc.invert(pc.match_substring_regex(names, _NAME))
    if not odd.true_count:
        return names
    spelled = names.filter(odd)
    plain = pc.replace_substring_regex(spelled, _WHOLE.replace("MARK", decimal), r"\1")
    known = pc.and_(
        pc.less_equal(pc.binary_length(spelled), LONGEST), pc.match_substring_regex(plain, _NAME)
    )
    rest = spelled.filter(pc.invert(known)).dictionary_encode()
    named = pa.array([name_of(t, decimal) for t in rest.dictionary.to_pylist()], pa.large_binary())
    plain = pc.replace_with_mask(plain, pc.invert(known), named.take(rest.indices))
    return pc.replace_with_mask(names, odd, plain)


def name_of(text: bytes, decimal: str) -> bytes:
    r"""Return the name of one id: the rule that `person_names` follows.

    >>> [name_of(text, ".") for text in (b" 01.0\t", b"1e0", b"-0.50", b"A1")]
    [b'1', b'1', b'-0.5', b'A1']
    """
    try:
        letters = text.decode().strip()
    except UnicodeDecodeError:
        return text.strip()
    value = number(letters, decimal)
    if value is None:
        return letters.encode()
    sign, power, digits = magnitude(value)
    if sign and not 0 <= power <= LONGEST:
        return decimal_text(value).replace(".", decimal).encode()
    whole, after = digits[:power].ljust(power, "0") or "0", digits[power:]
    return f"{'-' * (sign < 0)}{whole}{decimal * bool(after)}{after}".encode()


class ExpandedSecret:
    """Random bytes that several machines draw alike: keyed BLAKE2b of the numbers 0, 1, 2, ...

    Where the secret has 256 bits of the operating system, nobody tells them from its own.
    """

    def __init__(self, secret: bytes) -> None:
        """Begin with the first block."""
        self._secret = secret
        self._blocks = 0

    def __call__(self, size: int) -> bytes:
        """Return the next bytes, in blocks of 32."""
        first, self._blocks = self._blocks, self._blocks - -size // 32
        numbers = (number.to_bytes(8, "little") for number in range(first, self._blocks))
        blocks = (blake2b(number, key=self._secret, digest_size=32).digest() for number in numbers)
        return b"".join(blocks)[:size]


class PersonKeys:
    """The function from ids to keys of one count, which is confidential as the data are."""

    def __init__(self, random_bytes: RandomBytes = os.urandom) -> None:
        """Draw the numbers of the second step; those of the first are drawn as they are needed."""
        self._random_bytes = random_bytes
        self._factors = np.zeros((4, 0), np.uint64)
        self._drawing = Lock()  # one id has one key, whichever thread comes upon it first
        self._odd = [int(word) | 1 for word in np.frombuffer(random_bytes(32), np.uint64)]

    def of(self, names: pa.Array) -> tuple[Bits, Bools]:
        """Return the keys of some persons, (2, n) 64-bit words, and which have a name, (n,).

        Args:
            names: see `person_names`; those of no id are empty.
        """
        text, starts, lengths = _bytes_of(names)
        block = np.empty((2, lengths.size), np.uint64)
        words = _words(text, np.dtype("<u8"))
        for half, place in zip(block, (0, 8), strict=True):
            masks = _MASKS[np.clip(lengths - place, 0, 8)]
            np.bitwise_and(words[np.minimum(starts + place, words.size - 1)], masks, out=half)
        block[1] |= lengths.astype(np.uint64) << np.uint64(56)
        if (long := np.flatnonzero(lengths > _SHORT)).size:
            block[:, long] = self._hashed(text, starts[long], lengths[long])
        high, low = block
        low ^= self._spread(high, *self._odd[:2])
        high ^= self._spread(low, *self._odd[2:])
        return block, lengths > 0

    def _spread(self, words: Bits, first: int, second: int) -> Bits:
        """Return a function of each word whose upper bits depend on all bits of the word."""
        product = words * np.uint64(first)
        product ^= product >> np.uint64(32)
        product *= np.uint64(second)
        product ^= product >> np.uint64(29)
        return product

    def _hashed(self, text: Bits, starts: Ints, lengths: Ints) -> Bits:
        """Return the blocks of ids that are too long to be one, (2, n)."""
        order = np.argsort(-lengths, kind="stable")  # those that have an i-th word come first
        starts, lengths = starts[order], lengths[order]
        count = -(-int(lengths[0]) // 4)
        factors = self._first_factors(2 + count)
        words = _words(text, np.dtype("<u4"))
        sums = factors[:, :1] + factors[:, 1:2] * lengths.astype(np.uint64)
        ends = np.searchsorted(-lengths, -4 * np.arange(count), side="left").tolist()
        for i, end in enumerate(ends[:_COMMON]):
            word = words[starts[:end] + 4 * i].astype(np.uint64)
            word &= _MASKS[np.minimum(lengths[:end] - 4 * i, 4)]
            for row, factor in zip(sums, factors[:, 2 + i], strict=True):
                row[:end] += word * factor
        for k in range(ends[_COMMON] if count > _COMMON else 0):
            rest = text[starts[k] + 4 * _COMMON : starts[k] + lengths[k]].tobytes()
            more = np.frombuffer(rest + b"\0" * (-len(rest) % 4), "<u4").astype(np.uint64)
            sums[:, k] += factors[:, 2 + _COMMON :][:, : more.size] @ more
        halves = sums >> np.uint64(32)
        block = np.empty((2, order.size), np.uint64)
        block[:, order] = halves[::2] << np.uint64(32) | halves[1::2]
        block[1] = block[1] & _MASKS[7] | np.uint64(_HASHED << 56)
        return block

    def _first_factors(self, count: int) -> Bits:
        """Return the numbers a, b and the first c_i of each of the four hashes, (4, count)."""
        with self._drawing:
            more = count - self._factors.shape[1]
            if more > 0:
                # By place: which numbers they are does not depend on how many are drawn at once.
                drawn = np.frombuffer(self._random_bytes(32 * more), np.uint64).reshape(more, 4)
                self._factors = np.concatenate([self._factors, drawn.T], axis=1)
            return self._factors[:, :count]


def _bytes_of(names: pa.Array) -> tuple[Bits, Ints, Ints]:
    """Return bytes, and where in them each name starts, and its length."""
    _, offsets, content = names.buffers()
    places = np.frombuffer(offsets, np.int64)[names.offset :][: len(names) + 1]
    first, last = (int(places[0]), int(places[-1])) if len(names) else (0, 0)
    # Behind the last byte so many zeros that a word can be read at any place of any name.
    text = np.zeros(last - first + 16, np.uint8)
    if last > first:
        text[: last - first] = np.frombuffer(content, np.uint8)[first:last]
    return text, places[:-1] - first, np.diff(places)


def _words(text: Bits, word: np.dtype[np.unsignedinteger]) -> Bits:
    """Return the words that begin at each byte, as a view."""
    size = text.size - word.itemsize + 1
    return np.ndarray((size,), word, buffer=text.data, strides=(1,))
