"""The folder of a release: written whole or not at all, and the files in it that are read again."""
