"""Specs and made-up records, and all that the audit recomputes from plan and spec."""
