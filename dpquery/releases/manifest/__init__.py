"""What a release says of itself: release.json, statement.md, and what both say of extra columns."""
