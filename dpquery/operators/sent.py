"""Values that another process is given: what they are made of, without what follows from it."""

from functools import cached_property


class Sent:
    """A value that is pickled without its cached properties, some of which are functions."""

    def __getstate__(self) -> dict[str, object]:
        """Return all attributes but the cached properties."""
        kind = type(self)
        return {
            name: value
            for name, value in vars(self).items()
            if not isinstance(getattr(kind, name, None), cached_property)
        }
