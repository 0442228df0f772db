"""The small spec that the tests of the spec room vary."""

from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Spec

BASE = """\
dataset: {id: survey, version: 1}
privacy: {unit: row, neighbours: add-remove, delta: 1e-9}
budget: {epsilon: 4, delta: 1e-9}
other: drop
domain:
  age: {range: [0, 9]}
  sex: {values: [Male, Female]}
  state: {values: {1: Alabama, 2: Alaska, 4: Arizona}, other: show}
  income: {bins: [0, 10000, 20000, 50000]}
  hispanic: boolean
  race: {merge: {white: boolean, black: boolean, asian: {values: [A, B, C]}}}
workload:
  - name: first
    product: {age: prefix, sex: identity}
"""


def read(text: str, files: dict[str, str] | None = None) -> Spec:
    """Return the spec that a text is, with the lists of values that it names."""
    return parse(text, name="w.yaml", files=files or {})
