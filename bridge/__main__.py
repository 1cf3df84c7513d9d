"""``python -m bridge`` is ``gradbridge``."""

from bridge.cli import main

main(prog_name="gradbridge")
