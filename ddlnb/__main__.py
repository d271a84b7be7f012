"""``python -m ddlnb``: the command line."""

from __future__ import annotations

from ddlnb.cli.app import main

main()
