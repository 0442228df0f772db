"""What a file is by its first bytes, where a program writes the same ones into every such file.

They are a property of the format and of no record. Nothing is read by them: they say in a refusal
what the file is, and repeat nothing of it.
"""

_FIRST_BYTES = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
    (b"PK\x03\x04", "zip"),
    (b"PAR1", "Parquet"),
    (b"ARROW1", "Arrow"),
    (b"SQLite format 3\0", "SQLite"),
    (b"\xd0\xcf\x11\xe0", "Office"),
    (b"<stata_dta>", "Stata"),
    (b"$FL2", "SPSS"),
)
_PLAN = b'"format": "dpquery.'
_DELIMITERS = ",;\t|"
_LINES = 5  # of a text that tell whether it is a table


def kind_of(first_bytes: bytes) -> str:
    """Return what a file is that begins so; an empty text for text, and what is not known.

    >>> kind_of(b"PAR1..."), kind_of(b"age,sex")
    ('Parquet', '')
    """
    if first_bytes[8:12] == b"DUCK":
        return "DuckDB"
    return next((kind for mark, kind in _FIRST_BYTES if first_bytes.startswith(mark)), "")


def seems_to_be(content: bytes, name: str) -> str:
    r"""Return in words what a file seems to be by its first bytes and lines, or by its name.

    >>> seems_to_be(b"age;sex\n3;F\n", "persons.txt"), seems_to_be(b"a word", "note.txt")
    ('a CSV file', 'some other text')
    """
    kind, head = kind_of(content), content[:4096]
    if kind:
        return f"{kind} data"
    if _PLAN in head:
        return "a plan or another file of dpquery"
    lines = [line for line in head.decode("latin-1").splitlines() if line.strip()][:_LINES]
    table = any(lines and all(mark in line for line in lines) for mark in _DELIMITERS)
    if name.lower().endswith((".csv", ".tsv")) or (table and not head.lstrip().startswith(b"{")):
        return "a CSV file"
    return "JSON" if head.lstrip()[:1] in (b"{", b"[") else "some other text"
