"""The private side of adaptive whole-table measurement: its budget, its draws and its rounds."""
