"""What the manifest of answers to later questions says of the release that was asked."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnsweredFacts:
    """What answers to later questions were computed from: the same plan and its noisy values.

    Attributes:
        release: key of the release.
        measurements: digest of its noisy values.
        charged: what the questions took of any budget: nothing.
        guessed: attributes some of whose values the release does not tell apart, and the questions
            do: such values were taken to be equally likely.
    """

    release: str
    measurements: str
    charged: str = "0"
    guessed: tuple[str, ...] = ()
