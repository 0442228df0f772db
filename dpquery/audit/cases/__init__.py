"""Made-up data and questions, and all that the audit works out for itself from plan and spec."""
