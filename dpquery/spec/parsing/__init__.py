"""How a spec is read: the table of its fields, the forms of their values, and what they mean."""
