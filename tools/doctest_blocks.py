"""An extension of griffe: examples in docstrings (`>>>`) are shown as code, not as quotations."""

from __future__ import annotations

from typing import Any

import griffe


class DoctestBlocks(griffe.Extension):
    """Put a fence around every example."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        if obj.docstring is None:
            return
        lines, fenced = [], False
        for line in obj.docstring.value.splitlines():
            if line.startswith(">>>") and not fenced:
                lines += ["", "```pycon"]
                fenced = True
            elif fenced and not line.strip():
                lines += ["```", ""]
                fenced = False
            lines.append(line)
        obj.docstring.value = "\n".join([*lines, "```"] if fenced else lines)
