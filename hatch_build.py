"""Writes the chart library that reports embed, when the package is built or installed.

vl-convert holds Vega, Vega-Lite and Vega-Embed and bundles them without a network. It is needed here only, so that
users install a file of 0.9 MB and not the tool of 90 MB that makes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import vl_convert
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ChartLibrary(BuildHookInterface):
    """Bundle the library into one script that defines ``vegaEmbed``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write it where the package looks for it."""
        script = vl_convert.javascript_bundle()
        if "</script" in script.lower() or "<!--" in script:
            raise ValueError("the bundled chart library cannot stand inside a script element")
        name = "bridge/report/html/vega.min.js"
        Path(self.root, name).write_text(script, encoding="utf-8")
        build_data["artifacts"].append(name)
