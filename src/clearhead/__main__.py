"""`python -m clearhead`."""

from clearhead.cli.main import main

main()
