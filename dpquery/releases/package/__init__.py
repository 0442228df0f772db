"""A package to hand over: a release, with what describes it to people and to machines."""
