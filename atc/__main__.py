"""`python -m atc` is the command `atc`."""

import sys

from atc.cli.start import main

if __name__ == "__main__":
    sys.exit(main())
