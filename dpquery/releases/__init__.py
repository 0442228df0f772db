"""Noisy answers as files that explain themselves: tables, errors, manifest, statement, report."""
