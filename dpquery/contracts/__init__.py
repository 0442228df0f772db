"""How a release is made, once it is planned: by least squares, or by relaxed rows."""
