"""From the bytes of a CSV file to exact integer answers of a strategy."""
