"""Everything from outside, read with bounds: files, JSON, Parquet; and files written whole."""
