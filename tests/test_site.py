"""Oracle: the built site. It is complete, needs no network, and fits a phone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from tests.documents import DOCUMENTS, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` builds it, but elsewhere."""
    folder = tmp_path_factory.mktemp("site")
    (words,) = re.findall(
        r"^\t(?:\w+=\w+ )*\$\(BIN\)/(mkdocs .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert "--strict" in words.split()
    process = subprocess.run(
        [sys.executable, "-m", *words.split(), "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


class Page(HTMLParser):
    """What a page loads, where it links to, and which anchors it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


@pytest.fixture(scope="module")
def pages(site):
    found = {path: Page(path) for path in site.rglob("*.html")}
    return {path: page for path, page in found.items() if path.name != "404.html"}


def test_every_document_is_a_page_and_in_the_navigation(pages, site):
    names = {f"{Path(name).stem}.html" for name in DOCUMENTS if name.startswith("docs/")}
    assert {path.name for path in pages} == names | {"report.html"}
    linked = {Path(link).name for link in pages[site / "index.html"].links}
    assert linked >= names - {"index.html"}


def test_nothing_is_loaded_from_elsewhere(pages, site):
    for path, page in pages.items():
        for address in page.loads:
            assert not re.match(r"(\w+:)?//", address), f"{path.name} loads {address}"
            assert (path.parent / unquote(address)).is_file(), f"{path.name} loads {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", sheet.read_text("utf-8"))


def test_every_link_leads_to_a_page_and_an_anchor(pages, site):
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            file, _, anchor = unquote(link).partition("#")
            target = (path.parent / file).resolve() if file not in ("", ".") else path
            assert target.exists(), f"{path.name}: {link}"
            if anchor and target in pages:
                assert anchor in pages[target].anchors, f"{path.name}: {link}"


def test_formulas_are_mathml(site):
    for name in ("understand", "nudging"):
        written = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        shown = (site / f"{name}.html").read_text("utf-8")
        displayed = len(re.findall(r"^\$\$", written, flags=re.MULTILINE))
        assert displayed > 5
        assert shown.count('display="block"') == displayed
        assert "arithmatex" not in shown


def test_letters_with_an_index_are_not_taken_for_emphasis(pages):
    for path in pages:
        for emphasised in re.findall(r"<em>(.*?)</em>", path.read_text("utf-8"), re.DOTALL):
            assert re.match(r"[\w<]", emphasised), f"{path.name}: {emphasised}"
            assert not re.search(r"_\w|_$|\[$", re.sub(r"<.*?>", "", emphasised)), path.name


def test_the_help_of_every_command_is_there(site):
    text = (site / "cli.html").read_text("utf-8")
    for command in ("train", "evaluate", "show", "compare", "check", "paper run", "paper report"):
        assert f"<code>eqprop {command}</code>" in text
        assert f"usage: eqprop {command}" in text


def test_the_api_explains_what_a_rule_inherits(site):
    text = (site / "api.html").read_text("utf-8")
    section = text.partition('id="eqprop.ContinualEP"')[2].partition('id="eqprop.VF"')[0]
    for argument in ("free_steps", "beta", "nudging", "nudged_steps", "tolerance", "rescale"):
        assert re.search(rf"<b>{argument}</b>|<code>{argument}</code>", section), argument


def test_the_navigation_has_the_five_parts():
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    assert [name for part in nav for name in part] == [
        "Home",
        "Start",
        "Understand",
        "Do",
        "Reference",
        "Compare",
    ]


# In a browser.


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_in_a_browser(pages, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    outside, errors = [], []
    page.on("request", lambda it: it.url.startswith(("file:", "data:")) or outside.append(it.url))
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    hidden = """[...document.querySelectorAll(".md-content img")]
      .filter((it) => !it.complete || it.naturalWidth === 0).map((it) => it.src)"""
    for path in pages:
        page.goto(path.as_uri())
        page.wait_for_load_state("load")
        assert page.evaluate(over) == 0, path.name  # nothing makes the whole page scroll sideways
        assert page.evaluate(hidden) == [], path.name
    assert outside == []
    assert errors == []
    page.close()


def test_a_wide_table_scrolls_inside_its_box_on_a_phone(site, browser):
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto((site / "results.html").as_uri())
    scrolls = "(it) => it.scrollWidth > it.clientWidth"
    assert page.locator(".md-typeset__scrollwrap").first.evaluate(scrolls)
    page.close()


def test_the_search_works_without_a_server(site, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.click("input[name=query]")
    page.get_by_text("Type to start searching").wait_for()  # the index is there
    page.locator("input[name=query]").press_sequentially("interleaved sequences")
    page.locator(".md-search-result__item a").first.wait_for()
    assert "understand.html" in page.locator(".md-search-result__list").inner_html()
    page.close()
