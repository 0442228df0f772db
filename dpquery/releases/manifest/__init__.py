"""The facts on a release: release.json, statement.md, and what both state of extra columns."""
