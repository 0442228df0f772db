"""The fits of whole tables that were measured adaptively: relaxed rows, and shrunk tables."""
