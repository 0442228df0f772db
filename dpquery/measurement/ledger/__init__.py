"""The ledger: what every dataset may spend and has spent, and the measurements it paid for."""
