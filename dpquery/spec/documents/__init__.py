"""What is written from the table of fields: JSON Schema, starter spec, reference page."""
