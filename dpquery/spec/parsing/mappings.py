"""Mappings with fixed keys: a class each, an attribute a field.

Reading a mapping reads every field by its form and notes all mistakes. What is read then stands in
the attributes of an instance. An attribute whose field is missing or at fault has its default; if
there is none, it raises UnreadableError without a message: the mistake is noted already, and what
depends on it is skipped.
"""

from typing import ClassVar, Generic, Self, TypeVar, cast, overload

from dpquery.spec.parsing.forms import Form, Schema, described_as, kind_of_node
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.problems import Problems, UnreadableError, meant_by, quoted, suggestion

_T = TypeVar("_T")
_NO_DEFAULT = object()
_SHORT = 60  # characters of an example in a message
_HOMES: dict[str, set[str]] = {}
"""By key: what the mappings are called that have it."""

AFTER_A_COMMA = (
    "; in braces a comma begins another key: write numbers without it and with a point before "
    "decimals, put a list into brackets and a text with commas into quotes"
)
"""What to do about a key without a value that is no key."""


class Field(Generic[_T]):
    """One field of a mapping.

    Attributes:
        name: the key: the attribute's name without `_` at its end.
        form: the form of its value.
        about: one or two sentences for the schema, the starter and the reference page.
        example: a value as YAML.
        default: what is read where the key is not given.
        one_of: whether it is one of the keys of which the mapping has exactly one.
        together: the keys that demand this one.
        apart: the key that this one may not stand beside.
        conflict: the message about both, with {name}.
    """

    def __init__(self, form: Form[_T], about: str, example: str) -> None:
        """Make a field that must be given."""
        self.form, self.about, self.example = form, about, example
        self.name = self.apart = self.conflict = ""
        self.together: tuple[str, ...] = ()
        self.default, self.one_of = _NO_DEFAULT, False

    def with_(self, *keys: str) -> Self:
        """Return the field, which must be given beside any of some keys."""
        self.together = keys
        return self

    def without(self, key: str, conflict: str) -> Self:
        """Return the field, which must not be given beside a key, with the message about both."""
        self.apart, self.conflict = key, conflict
        return self

    @property
    def required(self) -> bool:
        """Whether the key must be given."""
        return self.default is _NO_DEFAULT and not self.one_of

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.rstrip("_")

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: "Fields", owner: type) -> _T: ...
    def __get__(self, instance: "Fields | None", owner: type) -> "Self | _T":
        if instance is None:
            return self
        if self.name in instance._read:
            return cast(_T, instance._read[self.name])
        if self.default is _NO_DEFAULT or (self.default is None and self.name in instance):
            raise UnreadableError(None)
        return cast(_T, self.default)

    @property
    def such_as(self) -> str:
        """The end of a message about a field that is missing: its example, where it is short."""
        shown = f"{self.name}: {self.example}"
        fits = len(shown) <= _SHORT and "\n" not in shown
        return f", such as `{shown}`" if fits else ""


def choice(form: Form[_T], about: str, example: str) -> Field[_T]:
    """Return one of the fields of which a mapping has exactly one."""
    field = Field(form, about, example)
    field.one_of = True
    return field


def defaulted(form: Form[_T], default: _T, about: str, example: str) -> Field[_T]:
    """Return a field with a value where it is left out."""
    field = Field(form, about, example)
    field.default = default
    return field


def optional(form: Form[_T], about: str, example: str) -> Field[_T | None]:
    """Return a field that may be left out: it is None then."""
    return defaulted(cast(Form[_T | None], form), None, about, example)


class Fields:
    """A mapping with fixed keys; each class of one is a `Form` too."""

    what: ClassVar[str]  # what messages call the mapping
    choice: ClassVar[str]  # what those messages call it that are about one of several keys
    fields: ClassVar[dict[str, Field[object]]]  # its fields by key
    kinds: ClassVar[list[str]]  # the keys of which exactly one is given

    def __init_subclass__(cls, *, what: str = "", choice: str = "") -> None:
        """Name the mapping in messages; `choice` only where that is another name."""
        cls.what, cls.choice = what, choice or what
        # Those of a class before those of its bases.
        every = [value for base in cls.__mro__ for value in vars(base).values()]
        cls.fields = {field.name: field for field in every if isinstance(field, Field)}
        cls.kinds = [name for name, field in cls.fields.items() if field.one_of]
        for name in cls.fields:
            _HOMES.setdefault(name, set()).add(what)

    def __init__(self, node: MapNode) -> None:
        self._node = node
        self._nodes: dict[str, Node] = {}
        self._read: dict[str, object] = {}
        self._chosen: str | None = None

    @classmethod
    def read(cls, node: Node, *, what: str = "") -> Self:
        """Return what a mapping says; `what` names it in messages where the class cannot."""
        fields = cls.fields
        if not isinstance(node, MapNode):
            kinds = [kind for kind in cls.kinds if fields[kind].example.startswith("[")]
            kinds = kinds if isinstance(node, ListNode) and kinds else cls.kinds
            needed = [f for f in fields.values() if f.required or f.name in kinds[:1]]
            texts = [f"{f.name}: {f.example}" for f in needed or [*fields.values()][:2]]
            shown = ", ".join(texts)
            shown = texts[0] if len(shown) > _SHORT and not needed else shown
            example = f"; write it as in `{{{shown}}}`" if len(shown) <= _SHORT else ""
            raise node.mistake(
                f"expected {what or cls.what}, a mapping with keys among {', '.join(fields)}, "
                f"found {kind_of_node(node)}{example}"
            )
        given = cls(node)
        given._sort_keys(what or cls.what)
        with node.problems.collected():
            given._choose(what or cls.choice)
        for name, field in fields.items():
            if name in given and field.apart not in given:
                with node.problems.collected():
                    given._read[name] = field.form.read(given._nodes[name])
        return given

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def node(self, name: str = "") -> Node:
        """Return the node of a key that was given, or of the mapping itself."""
        if name and name not in self._nodes:
            raise UnreadableError(None)
        return self._nodes[name] if name else self._node

    @property
    def problems(self) -> Problems:
        """What takes the mistakes in it."""
        return self._node.problems

    @property
    def given(self) -> bool:
        """Whether the mapping has any key, known or not."""
        return bool(self._node.entries)

    @property
    def chosen(self) -> str:
        """The one key of `kinds` that was given."""
        if self._chosen is None:
            raise UnreadableError(None)
        return self._chosen

    def _sort_keys(self, what: str) -> None:
        """Note unknown keys and those that are missing; an unknown one may be meant for such."""
        known, last = self.fields, ""
        meant: set[str | None] = set()
        for key, value in self._node.entries:
            name, _, number = map(str.strip, key.text.partition("="))
            empty = isinstance(value, TextNode) and value.empty
            if key.text in known:
                self._nodes[key.text], last = value, key.text
            elif empty and name in known and number:
                meant.add(name)
                key.note(f"write `{name}: {number}`, with a colon and a blank")
            elif empty and key.text.isdigit() and last in self._nodes:
                del self._nodes[last]  # what stands there is but the beginning of its number
                meant.add(last)
                message = f"a comma ends the number of {quoted(last)}: write it without commas"
                key.note(message)
            else:
                near, hint = meant_by(key.text, known), suggestion(key.text, known)
                meant.add(near)
                home, *others = _HOMES.get(key.text, {""})
                if near == "values" and isinstance(value, TextNode) and "column" in known:
                    hint = (
                        "; write `values: [...]` for a list, or `column:` for the name in the file"
                    )
                if key.text == "merge" and "suppress" in known:
                    hint = (
                        "; rows are merged under derived: `- {name: to_print, merged: {of: ITEM, "
                        "over: ATTRIBUTE, rel_error: 0.2}}`"
                    )
                elif near is None and home and not others:
                    hint += f"; {quoted(key.text)} is a key of {home}"
                if near is None and empty:
                    hint += AFTER_A_COMMA
                key.note(f"{what} has no key {quoted(key.text)}{hint}")
        for name, field in known.items():
            if field.required and name not in self and name not in meant:
                message = f"{what} needs the key {quoted(name)}; add it{field.such_as}"
                self._node.note(message)

    def _choose(self, what: str) -> None:
        """Find the one key of `kinds`; note what is missing beside it, and what does not fit."""
        kinds = self.kinds
        chosen = [name for name in kinds if name in self]
        if kinds and len(chosen) != 1:
            if not chosen and len(self._node.entries) > len(self._nodes):
                raise UnreadableError(None)  # an unknown key was meant to be the one
            names = " and ".join(chosen) or "none of them"
            message = f"{what} has one of the keys {', '.join(kinds)}; found {names}"
            raise self._node.mistake(message)
        self._chosen = chosen[0] if chosen else None
        for name, field in self.fields.items():
            if name in self and field.apart in self:
                self._nodes[name].note(field.conflict.format(name=name))
            for key in field.together if name not in self else ():
                if key in self:
                    # what may not stand beside the missing key may not beside this one either
                    barred = [f for f in self.fields.values() if f.apart == name and f.name in self]
                    needs = f"{quoted(key)} needs the key {quoted(name)}; add it{field.such_as}"
                    message = barred[0].conflict.format(name=key) if barred else needs
                    self._node.note(message)

    @classmethod
    def schema(cls) -> Schema:
        """Return the JSON Schema of the mapping."""
        fields = cls.fields.items()
        depend: dict[str, Schema] = {
            name: {"not": {"required": [field.apart]}} for name, field in fields if field.apart
        }
        for other in sorted({key for _, field in fields for key in field.together}):
            required = [name for name, field in fields if other in field.together]
            depend[other] = {**depend.get(other, {}), "required": required}
        parts: Schema = {
            "type": "object",
            "description": (cls.__doc__ or "").split("\n")[0],
            "properties": {
                name: described_as(field.form.schema(), field.about) for name, field in fields
            },
            "additionalProperties": False,
            "required": [name for name, field in fields if field.required],
            "oneOf": [{"required": [name]} for name in cls.kinds],
            "dependencies": depend,
        }
        return {name: part for name, part in parts.items() if part not in ([], {})}
