"""`python -m dpquery` is `dpquery`."""

from dpquery.cli import main

main()
