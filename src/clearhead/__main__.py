"""The entry point of `python -m clearhead`."""

from clearhead.cli.main import main

main()
