"""Differentially private tables: plan without data, release under a ledger, report every error."""

from dpquery.version import __version__

__all__ = ["__version__"]
