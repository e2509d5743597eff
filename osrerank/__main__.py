"""Start the command line: ``python -m osrerank``."""

from osrerank.cli import main

if __name__ == "__main__":
    main()
