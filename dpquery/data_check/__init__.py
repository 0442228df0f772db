"""What the curator is to know of a file before it is released: private, and on no release's way."""
