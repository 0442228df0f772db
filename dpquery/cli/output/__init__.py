"""What commands print: tables, text and JSON; results to stdout, progress to stderr."""
