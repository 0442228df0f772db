"""Start here: each command as a straight line through the rooms.

    spec -> operators -> strategy -> measurement -> reconstruction -> release

plan sees no data, and neither do answer and synthesize. release opens the data behind one door,
measurement.curator, after the ledger has been charged.
"""
