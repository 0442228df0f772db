"""Public names that several modules of dpquery define, and how many modules do.

To be emptied: give each meaning its own name, and take the line out. No line is ever added.
"""

DEFINED_TWICE = {}
