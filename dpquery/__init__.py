"""Differentially private tables: plan without data, release under a ledger, report every error."""

__version__ = "0.1.0"
