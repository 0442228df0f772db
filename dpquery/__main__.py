"""`python -m dpquery` is `dpquery`."""

from dpquery.cli.app import main

main()
