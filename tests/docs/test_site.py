"""The docs site builds without a warning, and its reference pages are what the code says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_reference_pages_are_what_the_code_says():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "reference.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_reference_lists_every_command_and_option():
    """A planted gap: without one option's row the page is not accepted."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import reference
    finally:
        sys.path.pop(0)
    page = reference.commands_page()
    for name in ("release", "serve", "plan", "audit replay", "store"):
        assert f"## evercount {name}" in page
    assert "`--epsilon`" in page
    lines = page.splitlines()
    broken = "\n".join(line for line in lines if "`--late`" not in line)
    assert broken != page.rstrip()


def test_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for page in ("index.html", "tutorial/flights.html", "reference/api.html", "proofs/index.html"):
        assert (tmp_path / "site" / page).is_file()
    api = (tmp_path / "site" / "reference" / "api.html").read_text(encoding="utf-8")
    assert 'id="evercount.engine.stream.Stream.step"' in api
    proof = (tmp_path / "site" / "proofs" / "factorizations-dense.html").read_text(encoding="utf-8")
    assert 'id="6-how-far-from-the-best"' in proof, "anchors are what others cite"
    assert "assets/katex/katex.min.js" in proof
    assert "katex.min.js" not in (tmp_path / "site" / "tutorial" / "flights.html").read_text(
        encoding="utf-8"
    )


def test_site_refuses_a_broken_link(tmp_path):
    """The check is real: a copy of the site with one broken link does not build."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Home\n\n[gone](gone.md)\n", encoding="utf-8")
    configuration = "site_name: a\nvalidation: {links: {not_found: warn}}\n"
    (tmp_path / "mkdocs.yml").write_text(configuration, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "gone.md" in done.stderr


def test_the_list_of_decisions_is_complete():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((0[\w-]+\.md)\)", (folder / "index.md").read_text(encoding="utf-8"))
    assert listed == sorted(page.name for page in folder.glob("0*.md"))


FORMULA = re.compile(
    r"^```math\n(.*?)^```|(?<![\\$\w])\$([^\s$](?:[^$\n]*[^\s$])?)\$(?![\w$])",
    re.MULTILINE | re.DOTALL,
)
KATEX = """
const katex = require(process.argv[1]), [macros, formulas] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const wrong = [];
let where;
console.warn = (text) => wrong.push(where + ": " + text); // a letter that the fonts do not have
for (const [page, text] of formulas) {
  where = page;
  const options = {strict: "ignore", macros: eval(`(${macros})`)};
  try { katex.renderToString(text, options); } catch (error) { console.warn(error.message); }
}
console.log(JSON.stringify(wrong));
"""  # noqa: E501


def unreadable(formulas: list[tuple[str, str]]) -> list[str]:
    """What KaTeX says of the formulas that it cannot typeset."""
    node = shutil.which("node")
    if node is None:
        pytest.skip(
            "node is not installed: KaTeX cannot be asked whether it can typeset the formulas"
        )
    asked = [node, "-e", KATEX, ROOT / "docs" / "assets" / "katex" / "katex.min.js"]
    from site_pages import MACROS

    done = subprocess.run(
        asked, input=json.dumps([MACROS, formulas]), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_every_formula_can_be_typeset():
    formulas = []
    for page in (*(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.proof.md")):
        text = re.sub(
            r"^```(?!math).*?^```|`[^`\n]+`",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.DOTALL | re.MULTILINE,
        )
        found = [(page.name, display or inline) for display, inline in FORMULA.findall(text)]
        formulas += found
        if page.name.endswith(".proof.md"):
            assert found, f"{page.name} marks no formula"
    assert unreadable(formulas) == []
    assert len(unreadable([("planted", r"\frac{1}{"), ("right", "a_t"), ("unknown", "ﷺ")])) == 2
