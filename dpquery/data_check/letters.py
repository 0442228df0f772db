"""What is seen of a text: characters that show nothing, letters in one form of Unicode or two."""

import unicodedata


def is_invisible(letter: str) -> bool:
    """Return whether a character shows nothing, or only changes how another one is shown."""
    return unicodedata.category(letter) in {"Cc", "Cf"} or "\ufe00" <= letter <= "\ufe0f"


def seen(text: str) -> str:
    r"""Return what is seen of a text, in one form of Unicode.

    >>> seen("Malmo\u0308\u200b") == "Malm\u00f6"
    True
    """
    visible = "".join(letter for letter in text if not is_invisible(letter))
    return unicodedata.normalize("NFC", " ".join(visible.split()))


def written_out(text: str) -> str:
    r"""Return a text with what is not seen in it as YAML and Python write it.

    >>> print(written_out("a\u200bb\u00a0Malmo\u0308"))
    a\u200bb\u00a0Malmo\u0308
    """
    composed = unicodedata.is_normalized("NFC", text)

    def is_hidden(letter: str) -> bool:
        blank = letter != " " and unicodedata.category(letter) in {"Zs", "Zl", "Zp"}
        mark = not composed and unicodedata.combining(letter) > 0
        return ord(letter) >= 128 and (is_invisible(letter) or blank or mark)

    def escaped(letter: str) -> str:
        code = ord(letter)
        return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"

    return "".join(escaped(letter) if is_hidden(letter) else letter for letter in text)
