"""RAP's private side: its budget, how queries are selected, and the rounds that measure them."""
