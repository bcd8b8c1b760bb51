"""A hook of mkdocs: pages that lie outside `docs/` join the site, and links between all of them
stay whole.

Proofs lie next to the code that they prove; changelog and map of the rooms lie at the top of the
repository. Here they become pages of the site without being copied. A link to a file that is not a
page (code, a test) becomes plain text. Pages with formulas get KaTeX, from `docs/assets/katex`; the
others do not load it.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
MACROS = r"""{
  "‖": "\\Vert ", "′": "'", "″": "''", "‴": "'''", "·": "\\cdot ", "Σ": "\\sum ", "Π": "\\prod ", "∆": "\\Delta ",
  "½": "\\tfrac12 ", "¼": "\\tfrac14 ", "¾": "\\tfrac34 ",
  "√": (input) => { // the bracket that follows goes under the root, or one letter or number with its index
    const next = input.future().text, taken = [];
    if (next !== "(" && !/^[\d\p{L}]$/u.test(next) || next === "Σ") return "\\surd ";
    let depth = 0;
    const take = () => {
      const {text} = input.popToken();
      depth += "({".includes(text) - ")}".includes(text);
      taken.push(text.startsWith("\\") ? text + " " : text);
    };
    do take(); while (depth > 0);
    while (/^\d$/.test(next) && /^\d$/.test(input.future().text) || input.future().text === "_" && next !== "(") {
      if (input.future().text === "_") take();
      do take(); while (depth > 0);
    }
    return "\\sqrt{" + (next === "(" ? taken.slice(1, -1) : taken).join("") + "}";
  },
}"""  # noqa: E501
"""Formulas of proofs are written with these letters, to be read in an editor; KaTeX does not know
them by itself."""
MATH = """<link rel="stylesheet" href="{0}katex.min.css"><script src="{0}katex.min.js"></script><script>
for (const one of document.querySelectorAll(".arithmatex")) {{
  const text = one.textContent.trim(); // in (...) within a line, in [...] on its own, each bracket after a backslash
  const options = {{displayMode: text[1] === "[", throwOnError: false, strict: "ignore", macros: {1}}};
  katex.render(text.slice(2, -2), one, options);
}}
</script>"""  # noqa: E501


def outside_pages() -> dict[Path, str]:
    """Markdown outside `docs/` that the site shows: path in the repository, and where it goes in
    the site."""
    pages = {
        Path("CHANGELOG.md"): "explanation/changelog.md",
        Path("CONTRIBUTING.md"): "explanation/contributing.md",
        Path("GOVERNANCE.md"): "explanation/governance.md",
        Path("RELEASING.md"): "explanation/releasing.md",
        Path("SECURITY.md"): "explanation/report-a-hole.md",
        Path("src/evercount/factorizations/README.md"): "proofs/notation.md",
    }
    for proof in sorted((ROOT / "src" / "evercount").rglob("*.proof.md")):
        path = proof.relative_to(ROOT)
        room = "-".join(path.parts[2:-1])
        pages[path] = f"proofs/{room}-{path.name.removesuffix('.proof.md')}.md"
    return pages


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages from outside and the list of all proofs."""
    rows = []
    for path, place in outside_pages().items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
        if path.name.endswith(".proof.md"):
            title = next(
                (line[2:] for line in text.splitlines() if line.startswith("# ")), path.stem
            )
            rows.append(f"| `{path.parts[2]}` | [{title}]({PurePosixPath(place).name}) |")
    table = "\n".join(["| room | proof |", "|---|---|", *rows])
    text = f"# Proofs\n\nEvery claim about privacy has a proof next to its code.\n\n{table}\n"
    files.append(File.generated(config, "proofs/index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    places = outside_pages()
    origins = {place: path for path, place in places.items()}
    docs = Path(config.docs_dir).relative_to(ROOT)
    source = origins.get(page.file.src_uri, docs / page.file.src_uri)
    if page.file.src_uri == "proofs/index.md":
        return markdown

    def rewrite(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = Path(*_normal(source.parent / target))
        if path in places:
            goal = places[path]
        elif path.is_relative_to(docs) and (ROOT / path).is_file():
            goal = path.relative_to(docs).as_posix()
        elif path == Path("README.md"):
            goal = "index.md"
        else:  # code, tests, folders: there is no page to go to
            return text
        here = PurePosixPath(page.file.src_uri).parent
        return f"[{text}]({_relative(PurePosixPath(goal), here)}{anchor})"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(rewrite, part) for part in parts)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Name the search for screen readers; add KaTeX where there is a formula."""
    output = output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )
    if 'class="arithmatex"' not in output:
        return output
    place = "../" * page.file.src_uri.count("/") + "assets/katex/"
    return output.replace("</body>", MATH.format(place, MACROS) + "</body>")


def _normal(path: Path) -> list[str]:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return parts


def _relative(goal: PurePosixPath, here: PurePosixPath) -> str:
    shared = 0
    for a, b in zip(goal.parts[:-1], here.parts, strict=False):
        if a != b:
            break
        shared += 1
    return "/".join([*[".."] * (len(here.parts) - shared), *goal.parts[shared:]])
