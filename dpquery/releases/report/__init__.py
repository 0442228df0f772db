"""What a release is worth, read back from its folder: as figures, and as a page with charts."""
