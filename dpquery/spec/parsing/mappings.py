"""Mappings with fixed keys: a class each, an attribute a field.

Reading a mapping reads every field by its form and notes all mistakes. What is read then stands in
the attributes of an instance. An attribute whose field is at fault, or missing, raises
UnreadableError without a message: the mistake is noted already, and what depends on it is skipped.
"""

from collections.abc import Sequence
from typing import ClassVar, Generic, Self, TypeVar, cast, overload

from dpquery.spec.parsing.forms import Form, Schema, described, described_as
from dpquery.spec.problems import Problems, UnreadableError, nearest, quoted, suggestion
from dpquery.spec.source import MapNode, Node

_T = TypeVar("_T")
_REQUIRED = object()


class Field(Generic[_T]):
    """One field of a mapping.

    Attributes:
        name: the key: the attribute's name without `_` at its end.
        form: the form of its value.
        about: one or two sentences for the schema, the starter and the reference page.
        example: a value as YAML.
        default: what is read where the key is not given; `unless_given` says it to a reader.
        required: whether the key must be given.
        one_of: whether it is one of the keys of which a mapping has exactly one.
        needed_with: a key that goes together with this one only.
        not_with: a key that excludes this one, and the message about both, with {name}.
    """

    def __init__(
        self,
        form: Form[_T],
        about: str,
        example: str,
        *,
        default: object = _REQUIRED,
        unless_given: str = "",
        one_of: bool = False,
        needed_with: str = "",
        not_with: tuple[str, str] | None = None,
    ) -> None:
        """Take what the table says; use `required`, `one_of`, `optional` and `defaulted`."""
        self.name = ""
        self.form, self.about, self.example = form, about, example
        self.default, self.unless_given, self.one_of = default, unless_given, one_of
        self.needed_with, self.not_with = needed_with, not_with

    @property
    def required(self) -> bool:
        """Whether the key must be given."""
        return self.default is _REQUIRED and not self.one_of

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.rstrip("_")

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: "Fields", owner: type) -> _T: ...
    def __get__(self, instance: "Fields | None", owner: type) -> "Self | _T":
        if instance is None:
            return self
        if self.name in instance._values:
            return cast(_T, instance._values[self.name])
        if self.name in instance._nodes or self.default is _REQUIRED:
            raise UnreadableError(None)
        return cast(_T, self.default)

    def schema(self) -> Schema:
        """Return the schema of the value, with what it is."""
        return described_as(self.form.schema(), self.about)


def required(form: Form[_T], about: str, example: str) -> Field[_T]:
    """Return a field that must be given."""
    return Field(form, about, example)


def one_of(form: Form[_T], about: str, example: str) -> Field[_T]:
    """Return one of the fields of which a mapping has exactly one."""
    return Field(form, about, example, one_of=True)


def optional(
    form: Form[_T],
    about: str,
    example: str,
    *,
    unless_given: str = "none",
    needed_with: str = "",
    not_with: tuple[str, str] | None = None,
) -> Field[_T | None]:
    """Return a field that may be left out: it is None then."""
    return cast(
        Field[_T | None],
        Field(
            form,
            about,
            example,
            default=None,
            unless_given=unless_given,
            needed_with=needed_with,
            not_with=not_with,
        ),
    )


def defaulted(
    form: Form[_T],
    default: _T,
    about: str,
    example: str,
    *,
    unless_given: str = "",
    not_with: tuple[str, str] | None = None,
) -> Field[_T]:
    """Return a field with a value where it is left out."""
    unless_given = unless_given or f"`{default}`"
    return Field(
        form, about, example, default=default, unless_given=unless_given, not_with=not_with
    )


class Fields:
    """A mapping with fixed keys; each class of one is a `Form` too.

    Attributes:
        what: what messages call the mapping.
        choice: what messages call it that demand one of several keys.
    """

    what: ClassVar[str]
    choice: ClassVar[str]

    def __init_subclass__(cls, *, what: str = "", choice: str = "") -> None:
        """Name the mapping in messages; `choice` only where that is another name."""
        cls.what, cls.choice = what, choice or what

    def __init__(self, node: MapNode) -> None:
        """Start with nothing read."""
        self._node = node
        self._nodes: dict[str, Node] = {}
        self._values: dict[str, object] = {}
        self._chosen: str | None = None

    @classmethod
    def fields(cls) -> dict[str, Field[object]]:
        """Return the fields by key: those of a class before those of its bases."""
        every = [own for base in cls.__mro__ for own in vars(base).values()]
        return {own.name: own for own in every if isinstance(own, Field)}

    @classmethod
    def kinds(cls) -> list[str]:
        """Return the keys of which exactly one is given."""
        return [name for name, own in cls.fields().items() if own.one_of]

    @classmethod
    def read(cls, node: Node, problems: Problems, *, what: str = "") -> Self:
        """Return what a mapping says; `what` names it in messages where the class cannot."""
        if not isinstance(node, MapNode):
            raise UnreadableError(
                node.place,
                f"expected {what or cls.what}, a mapping with keys among {', '.join(cls.fields())}"
                f", found {described(node)}",
            )
        given = cls(node)
        given._sort_keys(what or cls.what, problems)
        with problems.collected():
            given._choose(what or cls.choice, problems)
        for name, field in cls.fields().items():
            if name in given._nodes and not given._excluded(field):
                with problems.collected():
                    given._values[name] = field.form.read(given._nodes[name], problems)
        return given

    @property
    def chosen(self) -> str:
        """The one key of `kinds` that was given."""
        if self._chosen is None:
            raise UnreadableError(None)
        return self._chosen

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def node(self, name: str = "") -> Node:
        """Return the node of a key that was given, or of the mapping itself."""
        return self._nodes.get(name, self._node)

    def _sort_keys(self, what: str, problems: Problems) -> None:
        """Note unknown keys and those that are missing; an unknown one may be meant for such."""
        known = self.fields()
        meant = set()
        for key, value in self._node.entries:
            if key.text in known:
                self._nodes[key.text] = value
            else:
                meant.add(nearest(key.text, known))
                hint = suggestion(key.text, known)
                problems.add(key.place, f"{what} has no key {quoted(key.text)}{hint}")
        for name, field in known.items():
            if field.required and name not in self._nodes and name not in meant:
                problems.add(self._node.place, f"{what} needs the key {quoted(name)}; add it")

    def _choose(self, what: str, problems: Problems) -> None:
        """Find the one key of `kinds`, and what does not go with it."""
        kinds = self.kinds()
        chosen = [name for name in kinds if name in self._nodes]
        if kinds and len(chosen) != 1:
            if not chosen and len(self._node.entries) > len(self._nodes):
                raise UnreadableError(None)  # an unknown key was meant to be the one
            found = " and ".join(chosen) or "none of them"
            message = f"{what} has one of the keys {', '.join(kinds)}; found {found}"
            raise UnreadableError(self._node.place, message)
        self._chosen = chosen[0] if chosen else None
        for name, field in self.fields().items():
            if field.not_with and self._excluded(field) and name in self._nodes:
                problems.add(self._nodes[name].place, field.not_with[1].format(name=name))
            if field.needed_with in self._nodes and name not in self._nodes:
                owner = f"a {field.needed_with}"
                problems.add(self._node.place, f"{owner} needs the key {quoted(name)}; add it")

    def _excluded(self, field: Field[object]) -> bool:
        """Return whether a field stands beside another that it does not go with."""
        return field.not_with is not None and field.not_with[0] in self._nodes

    @classmethod
    def schema(cls) -> Schema:
        """Return the JSON Schema of the mapping."""
        fields = cls.fields()
        found: Schema = {
            "type": "object",
            "description": (cls.__doc__ or "").split("\n")[0],
            "properties": {name: own.schema() for name, own in fields.items()},
            "additionalProperties": False,
        }
        needed = [name for name, own in fields.items() if own.required]
        found |= {"required": needed} if needed else {}
        kinds = cls.kinds()
        found |= {"oneOf": [{"required": [name]} for name in kinds]} if kinds else {}
        depend = _dependencies(tuple(fields.values()))
        return found | {"dependencies": depend} if depend else found

    @classmethod
    def words(cls) -> str:
        """Return that a mapping is meant, and where the reference page describes it."""
        return f"mapping with {', '.join(f'`{name}`' for name in cls.fields())}"


def _dependencies(fields: Sequence[Field[object]]) -> dict[str, Schema]:
    """Return what a given key demands of the others."""
    depend: dict[str, Schema] = {}
    for owner in dict.fromkeys(own.needed_with for own in fields if own.needed_with):
        together = [own.name for own in fields if own.needed_with == owner]
        depend[owner] = {"required": together}
    for own in fields:
        if own.not_with:
            depend[own.name] = {"not": {"required": [own.not_with[0]]}}
    return depend
