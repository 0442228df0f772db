"""Exact discrete noise: its scale for a sensitivity, how it is drawn, and by which libraries."""
