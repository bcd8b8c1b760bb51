"""The pages for strangers: a hole is reported in private, and what the pages name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_no_page_asks_for_a_public_report_of_a_hole() -> None:
    for page in (ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "docs" / "security.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            if "vulnerability" in line and "Not a vulnerability" not in line:
                assert "open an issue" not in line, f"{page.name}: {line}"
    assert "in private" in (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_hole_that_was_found_has_a_test() -> None:
    table = SECURITY.partition("## Holes that were found")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 6
    for row in rows:
        tests = re.findall(r"`(tests/\S+\.py)`", row)
        assert tests, row
        for test in tests:
            assert (ROOT / test).is_file(), test


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md", "docs/security.md"])
def test_the_threat_model_is_linked(page: str) -> None:
    assert "explanation/threat-model.md)" in (ROOT / page).read_text(encoding="utf-8")


def test_every_party_of_the_security_page_is_in_the_threat_model() -> None:
    text = (
        (ROOT / "docs" / "security.md")
        .read_text(encoding="utf-8")
        .partition("| who | has | may |")[2]
    )
    roles = re.findall(r"^\| (\w+) \|", text.partition("\n\n")[0], re.MULTILINE)
    model = (ROOT / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8")
    assert roles == ["reader", "writer", "admin", "operator", "program"]
    for role in roles[:-1]:
        assert re.search(rf"^\| \*\*{role}\b", model, re.MULTILINE), role
    assert "code in the same process" in model
