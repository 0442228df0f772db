"""The error report of a release, read back from its folder: as figures, and as a page of charts."""
