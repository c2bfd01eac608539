"""Oracle: arithmetic for positions, parsers for well-formedness, a real browser for the page."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eqprop.report import html, markdown, svg, writer
from eqprop.report.blocks import Block, Chart, Line, Matrix, Panel, Table, Text
from eqprop.report.catalogue import Catalogue
from eqprop.report.item import Item, Order, Row
from eqprop.report.results import Completeness, Results
from eqprop.report.source import Kind, Source
from eqprop.runs.recipe import UserError
from tests.in_browser import Opened, opened

pytestmark = pytest.mark.slow

NAN = math.nan
STEPS = tuple(map(float, range(16)))


@dataclass(frozen=True)
class Fake(Item):
    name: str
    title: str = "A <title> & more"
    place: str = 'Fig. "toy-model"'
    needs: str = "5 min on an H200; quick 1 min on two cores"
    is_now: Completeness = "full"
    has_rows: tuple[Row, ...] = ()
    has_blocks: tuple[Block, ...] = ()

    def run(self, order: Order) -> None: ...

    def completeness(self, results: Results) -> Completeness:
        return self.is_now

    def rows(self, results: Results) -> tuple[Row, ...]:
        return self.has_rows

    def blocks(self, results: Results) -> tuple[Block, ...]:
        return self.has_blocks


def pair(color: int, off: float) -> tuple[Line, Line]:
    """The gradient of BPTT and the update of a rule, `off` apart at the end."""
    y = [(color - 2) * 1e-4 * math.exp(-k / 6) for k in STEPS]
    update = tuple(v + off * k for v, k in zip(y, STEPS, strict=True))
    return (
        Line(f"synapse {color}, −∇ BPTT", STEPS, tuple(y), "solid", color),
        Line(f"synapse {color}, Δ rule", STEPS, update, "dashed", color),
    )


def dynamics(name: str, *offsets: float) -> Chart:
    panels = tuple(
        Panel(f"η = {off:g}", "step k", "Δ(k)", tuple(x for c in range(5) for x in pair(c, off)))
        for off in offsets
    )
    return Chart(name, "Five synapses, `Δ` and −∇.", panels)


ANGLES = Chart(
    "angles",
    "Test error against Ψ.",
    (
        Panel(
            "After training",
            "Ψ, degrees",
            "test error, %",
            (
                Line("paper", (0, 45, 90), (2, 3, 9), "points", 7, (1, 2, 5), (3, 4, 13)),
                Line("eqprop", (0, 45, 90), (2, NAN, 8), "solid", 0),
            ),
        ),
        Panel("Residual", "epoch", "r", (Line("", STEPS, STEPS),), y_log=True),
        Panel("Nothing", "x", "y", ()),
    ),
)
WIDE = Table("A wide one.", tuple(f"column {i}" for i in range(8)), (("12.34 ± 0.56",) * 8,) * 3)
COSINES = Matrix("Cosines.", ("EP", "RBP"), ("EP", "RBP"), ((1.0, 0.5), (NAN, -0.25)))
TRIED = "what `was` tried | and more"
RELEASE, TEXT = Source(Kind.RELEASE, "its command"), Source(Kind.TEXT, "a table")
ITEMS = (
    Fake(
        "toy",
        has_rows=(
            Row("the <first>", "2.00 ± 0.13", "1.95 ± 0.11", True, "", "as <released>", RELEASE),
            Row("the second", "2.28 ± 0.16", "5.13 ± 0.35", False, TRIED, "with β | η", TEXT),
            Row("the third", "2.46", None, None),
        ),
        has_blocks=(Text("<b>not bold</b>, but `code < 1`"), dynamics("gdd", 0, 3e-6), WIDE),
    ),
    Fake("angles", is_now="quick", has_blocks=(ANGLES, COSINES)),
    Fake("speed", is_now="missing", has_rows=(Row("one network", "2 h 39 min", None, None),)),
)
ADDRESS = "https://example.org/paper?a=1&b=2"


def paper(*items: Item) -> Catalogue:
    first = {"runs": (), "parts": (), "first": ("toy",), "by_itself": "toy"}
    return Catalogue("A <paper>", "One & Two, 2020", ADDRESS, items, **first)


PAPER = paper(*ITEMS)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    monkeypatch.chdir(tmp_path)
    return Results(Path("results"))


def numbers(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


def drawn(panel: Panel) -> list[ElementTree.Element]:
    """The paths of the lines, in their order."""
    return [p for p in ElementTree.fromstring(svg.plot(panel)).iter("path") if p.get("data-v")]


# Scales, ticks and numbers.


def test_a_scale_puts_values_where_arithmetic_does():
    linear = svg.Scale(-1, 3, 200, 0)
    assert [linear(v) for v in (-1, 0, 1, 3)] == [200, 150, 100, 0]
    log = svg.Scale(1e-4, 1e2, 0, 60, log=True)
    assert [log(v) for v in (1e-4, 1e-2, 1, 1e2)] == pytest.approx([0, 20, 40, 60])
    assert all(math.isnan(log(v)) for v in (0, -1, NAN, math.inf))


@pytest.mark.parametrize(
    ("low", "high", "options", "expected"),
    [
        (0, 10.4, {}, [0, 2, 4, 6, 8, 10]),
        (-2.1e-4, 2.2e-4, {}, [-2e-4, -1e-4, 0, 1e-4, 2e-4]),
        (1.93, 2.31, {}, [2.0, 2.1, 2.2, 2.3]),
        (-3.6, 183.6, {"degrees": True}, [0, 45, 90, 135, 180]),
        (0.98, 2.02, {"whole": True}, [1, 2]),
        (1e-7, 0.2, {"log": True}, [1e-6, 1e-4, 1e-2]),
        (0.9, 120, {"log": True}, [1, 2, 5, 10, 20, 50, 100]),
        (1.9, 4.6, {"log": True}, [2, 2.5, 3, 3.5, 4, 4.5]),
    ],
)
def test_ticks_are_round_numbers(low, high, options, expected):
    assert svg.ticks(low, high, **options) == pytest.approx(expected, abs=1e-12)


def test_labels_share_a_power_of_ten_where_they_need_one():
    assert svg.tick_labels([-2e-4, 0, 2e-4]) == (["−2", "0", "2"], "×10⁻⁴")
    assert svg.tick_labels([0, 2.5, 5]) == (["0", "2.5", "5"], "")
    assert svg.tick_labels([0, 200000]) == (["0", "2"], "×10⁵")
    assert svg.tick_labels([1e-6, 1e-2, 1e2], log=True) == (["10⁻⁶", "10⁻²", "10²"], "")
    assert svg.tick_labels([0.1, 1, 10], log=True) == (["0.1", "1", "10"], "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2.28, "2.28"),
        (-0.012345, "−0.01235"),
        (99.999999, "100"),
        (1200, "1200"),
        (123456, "123456"),
        (3.2e-9, "3.2×10⁻⁹"),
        (-6e23, "−6×10²³"),
        (NAN, "–"),
    ],
)
def test_numbers_are_written_as_people_write_them(value, text):
    assert svg.number(value) == text


# Lines.


def test_points_lie_where_the_axes_say():
    line = Line("a", (0, 5, 10), (0, 10, 40), "points")
    tree = ElementTree.fromstring(svg.plot(Panel("t", "x", "y", (line,), y_range=(0, 40))))
    field = next(tree.iter("svg")).find("svg")
    left, top = (float(field.get(k)) + 4 for k in ("x", "y"))
    labels = {t.text: (float(t.get("x")), float(t.get("y"))) for t in tree.iter("text")}
    at = numbers(next(p for p in tree.iter("path") if p.get("data-v")).get("d"))
    assert at[2][0] + left == pytest.approx(labels["10"][0], abs=0.11)  # above its tick
    assert at[2][1] + top + 4 == pytest.approx(labels["40"][1], abs=0.11)  # level with its label
    assert at[1][0] == pytest.approx((at[0][0] + at[2][0]) / 2, abs=0.11)
    assert at[0][1] - at[1][1] == pytest.approx((at[0][1] - at[2][1]) / 4, abs=0.11)


def test_nan_leaves_a_gap_and_a_lone_point_is_a_dot():
    (path,) = drawn(Panel("t", "x", "y", (Line("a", (0, 1, 2, 3, 4), (1, 2, NAN, 2, NAN)),)))
    assert re.sub(r"[\d. ]+", "", path.get("d").replace("h0", "h")) == "MLMh"
    assert path.get("data-v") == "0;1|1;2|3;2"


def test_a_log_axis_leaves_out_what_has_no_logarithm():
    (path,) = drawn(Panel("t", "x", "y", (Line("a", (1, 2, 3), (1, 0, 100)),), y_log=True))
    assert path.get("data-v") == "1;1|3;100"
    tenth, whole = (
        numbers(
            drawn(Panel("t", "x", "y", (Line("a", (1, 2, 3), (1, m, 100)),), y_log=True))[0].get(
                "d"
            )
        )
        for m in (10, 1)
    )
    assert tenth[1][1] == pytest.approx((tenth[0][1] + tenth[2][1]) / 2, abs=0.11)
    assert whole[1][1] == whole[0][1]


def test_a_band_surrounds_its_line_and_bars_go_through_points():
    line = Line("a", (0, 1, 2), (2, 3, 4), "solid", 0, (1, 2, NAN), (3, 4, 5))
    plot = ElementTree.fromstring(svg.plot(Panel("t", "x", "y", (line,))))
    (band,) = (p for p in plot.iter("path") if p.get("fill-opacity"))
    (curve,) = (numbers(p.get("d")) for p in plot.iter("path") if p.get("data-v"))
    corners = numbers(band.get("d"))
    assert len(corners) == 4  # two points: the third has no lower end
    assert corners[0][1] < curve[0][1] < corners[3][1]
    assert "2;3 (2 to 4)" not in svg.plot(Panel("t", "x", "y", (line,)))
    assert "1;3 (2 to 4)" in svg.plot(Panel("t", "x", "y", (line,)))
    bars = ElementTree.fromstring(svg.plot(Panel("t", "x", "y", (replace(line, style="points"),))))
    assert sum(p.get("d").count("V") for p in bars.iter("path")) == 2


def test_a_solid_line_under_a_dashed_one_of_its_colour_is_broad():
    def widths(chart: Chart) -> set[str]:
        return {p.get("stroke-width") for p in drawn(chart.panels[0], svg.coincide(chart))}

    def drawn(panel: Panel, broad: bool) -> list[ElementTree.Element]:
        tree = ElementTree.fromstring(svg.plot(panel, broad=broad))
        return [p for p in tree.iter("path") if p.get("data-v")]

    assert widths(dynamics("same", 0)) == {"4.5", "1.8"}
    assert widths(dynamics("apart", 3e-4)) == {"1.8"}


def test_legends_are_as_short_as_they_can_be():
    pairs = dynamics("a", 3e-4).panels[0].lines
    assert [(k.label, k.style, k.color) for k in svg.legend(pairs)] == [
        *((f"synapse {i}", "solid", i) for i in range(5)),
        ("−∇ BPTT", "solid", None),
        ("Δ rule", "dashed", None),
    ]
    alike = tuple(replace(line, label=line.label.split(", ")[1]) for line in pairs)
    assert [(k.label, k.color) for k in svg.legend(alike)] == [("−∇ BPTT", None), ("Δ rule", None)]
    assert [k.label for k in svg.legend(ANGLES.panels[0].lines)] == ["paper", "eqprop"]
    assert svg.legend(ANGLES.panels[1].lines) == ()
    assert len(svg.shared_legend(ANGLES) or ()) == 2  # the other panels need none of their own
    clash = Chart(
        "c", "", (ANGLES.panels[0], Panel("p", "x", "y", (Line("paper", (0, 1), (0, 1)),)))
    )
    assert svg.shared_legend(clash) is None


@pytest.mark.parametrize("chart", [ANGLES, dynamics("gdd", 0, 3e-6)], ids=lambda chart: chart.name)
def test_a_figure_stands_alone(chart):
    tree = ElementTree.fromstring(svg.figure(chart))
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    assert tree.get("role") == "img"
    assert tree.get("aria-label") == chart.caption
    assert "var(" not in svg.figure(chart)
    width, height = map(float, tree.get("viewBox").split()[2:])
    texts = {t.text for t in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {svg.typeset(panel.title) for panel in chart.panels} <= texts
    assert height > svg.HEIGHT
    assert width > len(chart.panels) * 340


# The page, the Markdown, the marks.


def test_the_page_is_well_formed_and_text_stays_text(results):
    source = html.page(PAPER, results, ["made <here>"])
    tree = ElementTree.fromstring(source)
    assert [s.get("id") for s in tree.iter("section")] == ["toy", "angles", "speed"]
    first, quick, missing = tree.iter("section")
    header = next(tree.iter("header"))
    assert next(header.iter("h1")).text == "A <paper>"
    assert "(One & Two, 2020)" in "".join(header.itertext())
    assert next(first.iter("h2")).text == "A <title> & more"
    paragraph = next(p for p in first.iter("p") if (p.text or "").startswith("<b>not bold"))
    assert [code.text for code in paragraph.iter("code")] == ["code < 1"]
    marks = [span.text for span in first.iter("span") if span.get("class") in ("yes", "no", "open")]
    assert marks == ["✓", "✗", "–"]
    cells = [td.text for td in first.iter("td") if td.get("class") == "note"]
    assert cells[:3] == ["as <released>", "the released code", None]
    assert "eqprop paper run toy" in "".join(first.itertext())
    assert "A quick run" in "".join(quick.itertext())
    assert "A quick run" not in "".join(first.itertext())
    assert "5 min on an H200" in "".join(missing.itertext())
    assert [s.get("--v") or s.get("style") for s in quick.iter("td")] == [
        "--v:1.000", "--v:0.500", "--v:0.000", "--v:0.000",
    ]  # fmt: skip
    assert {a.get("href") for a in tree.iter("a")} == {
        ADDRESS, "#top", "#toy", "#angles", "#speed",
    }  # fmt: skip
    assert not re.search(r"\b(src|@import|url\()", source)


def test_powers_of_ten_are_set_as_such():
    assert html.text("from 1e-12 to 7.5e+02, `1e-3`, commit 12e34, 0.0e+00") == (
        "from 10⁻¹² to 7.5×10², <code>1e-3</code>, commit 12e34, 0.0"
    )


def test_an_item_of_which_something_is_there_is_not_called_missing(results):
    some = replace(ITEMS[0], is_now="missing")
    assert [html.shown_state(item, results) for item in (*ITEMS, some)] == [
        "full", "quick", "missing", "partial",
    ]  # fmt: skip
    assert "**in part**. It needs: 5 min" in markdown.section(some, results)
    assert "Not all of it has run yet" in html.section(some, results)
    assert "not run yet" not in html.section(some, results)


def test_subscripts_are_set_as_such():
    assert html.text("Ψ(θ_f, θ_b), `θ_f`, fan_in") == (
        "Ψ(θ<sub>f</sub>, θ<sub>b</sub>), <code>θ_f</code>, fan_in"
    )
    assert markdown.escaped("∇_s, `a_b`, fan_in") == "∇<sub>s</sub>, `a_b`, fan\\_in"
    tree = ElementTree.fromstring(svg.plot(Panel("t", "t", "Δ_s(t)", ())))
    label = next(tree.iter("text"))
    assert "".join(label.itertext()) == "Δs(t)"
    assert [(t.text, t.get("dy")) for t in label] == [("s", "3"), ("(t)", "-3")]


def test_markdown_has_the_same_tables(results):
    page = markdown.page(PAPER, results)
    assert (
        "| the second | 2.28 ± 0.16 | 5.13 ± 0.35 | ✗ | with β \\| η | the text | "
        "what `was` tried \\| and more |" in page
    )
    assert "| the third | 2.46 | – | – |  |  |  |" in page
    assert "| one network | 2 h 39 min | – | – |\n" in page  # no reading, no source, no note
    assert "\\<b>not bold\\</b>, but `code < 1`" in page
    assert "(figures/gdd.svg)" in page
    assert "| EP | 1.0000 | 0.5000 |\n| RBP | – | −0.2500 |" in page
    assert "**quick run**" in page
    assert "**not run yet**. It needs: 5 min on an H200" in page
    assert "| --- | ---: | ---: | --- | --- | --- | --- |" in page  # numbers to the right


def test_what_is_written_is_there_and_writing_twice_changes_nothing(results):
    written = writer.write(PAPER, results, Path("page.html"))
    assert [path.as_posix() for path in written] == [
        "page.html",
        "results/paper/report.md",
        "results/paper/figures/gdd.svg",
        "results/paper/figures/angles.svg",
    ]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in written}
    assert writer.write(PAPER, results, Path("page.html")) == written
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in written} == before
    assert "commit" in Path("page.html").read_text("utf-8")


def test_marks_in_readme_and_docs_are_filled(results):
    Path("docs").mkdir()
    Path("docs/plain.md").write_text("no marks\n")
    Path("docs/more.md").write_text(
        "<!-- paper: angles figures -->\n<!-- end -->\n<!-- paper: toy tables -->\n<!-- end -->\n"
    )
    Path("README.md").write_text(
        "before\n<!-- paper: toy -->\nold\n<!-- end -->\nbetween\n"
        "<!-- paper: toy rows -->\n<!-- end -->\n<!-- paper: summary -->\n<!-- end -->\n"
        "<!-- paper: toy numbers -->\n<!-- end -->\n"
        "<!-- paper: sources -->\n<!-- end -->\nafter\n"
    )
    untouched = Path("README.md").read_text("utf-8")
    writer.write(PAPER, results, Path("page.html"))
    assert Path("README.md").read_text("utf-8") == untouched  # only on request
    writer.write(PAPER, results, Path("page.html"), update_docs=True)
    readme = Path("README.md").read_text("utf-8")
    full, rows, summary, brief, sources = re.findall(
        r" -->\n\n(.*?)\n<!-- end -->", readme, re.DOTALL
    )
    assert readme.startswith("before\n<!-- paper: toy -->\n\n|  | paper |")
    assert readme.endswith("<!-- end -->\nafter\n")
    assert "old" not in readme
    assert "\nbetween\n" in readme
    assert full.startswith(rows)
    assert brief.splitlines() == [
        "|  | paper | eqprop | pass |",
        "| --- | ---: | ---: | --- |",
        "| the \\<first> | 2.00 ± 0.13 | 1.95 ± 0.11 | ✓ |",
        "| the second | 2.28 ± 0.16 | 5.13 ± 0.35 | ✗ |",
        "| the third | 2.46 | – | – |",
    ]
    assert "12.34 ± 0.56" in full
    assert "12.34" not in rows
    assert ".svg" not in full
    assert summary.count("\n") == 2 + len(ITEMS)
    more = Path("docs/more.md").read_text("utf-8")
    assert "(../results/paper/figures/angles.svg)" in more
    assert full.endswith(more.partition("<!-- paper: toy tables -->\n\n")[2].partition("\n<!--")[0])
    assert "the second" not in more
    assert Path("docs/plain.md").read_text() == "no marks\n"
    assert sources.splitlines()[2:] == [
        "| the released code | its command | `toy` |",
        "| the text | a table | `toy` |",
    ]
    writer.write(PAPER, results, Path("page.html"), update_docs=True)
    assert Path("README.md").read_text("utf-8") == readme


def test_a_section_that_would_hold_less_is_refused_and_nothing_is_written(results):
    Path("README.md").write_text("<!-- paper: toy -->\n<!-- end -->\n")
    writer.write(PAPER, results, Path("page.html"), update_docs=True)
    readme, (toy, *others) = Path("README.md").read_text("utf-8"), ITEMS
    first, second, third = toy.has_rows
    wide = toy.has_blocks[-1]
    for less, said in (
        (replace(toy, has_rows=(first, second)), "7 lines instead of 8"),
        (replace(toy, has_blocks=()), "4 lines instead of 8"),
        (
            replace(toy, has_rows=(replace(first, ours=None, passed=None), second, third)),
            "49 cells instead of 51",
        ),
        (replace(toy, has_blocks=(replace(wide, rows=wide.rows[:2]),)), "7 lines instead of 8"),
    ):
        with pytest.raises(UserError) as caught:
            writer.write(paper(less, *others), results, Path("other.html"), update_docs=True)
        assert str(caught.value) == (
            f"README.md: paper: toy: would hold {said}: complete the results, or empty the "
            "section if it is to shrink"
        )
        assert Path("README.md").read_text("utf-8") == readme
        assert not Path("other.html").exists()
    # a row that passes has nothing to note
    better = replace(second, passed=True, note="")
    good = paper(replace(toy, has_rows=(first, better, third)), *others)
    writer.write(good, results, Path("other.html"), update_docs=True)
    assert "tried" not in Path("README.md").read_text("utf-8")


def test_results_that_lie_elsewhere_leave_the_documents_here_alone(results, tmp_path):
    marks = "<!-- paper: toy rows -->\nas it was\n<!-- end -->\n"
    Path("README.md").write_text(marks)
    elsewhere = Results(tmp_path / "elsewhere" / "results")
    writer.write(PAPER, elsewhere, Path("page.html"), update_docs=True)
    assert Path("README.md").read_text() == marks


def test_a_mark_that_names_no_item_is_an_error(results):
    Path("README.md").write_text("<!-- paper: tyo -->\n<!-- end -->\n")
    with pytest.raises(UserError, match=r"README\.md: paper: tyo: no such item\. There are: toy"):
        writer.write(PAPER, results, Path("page.html"), update_docs=True)


def test_a_verdict_needs_a_source():
    for passed in (True, False):
        with pytest.raises(ValueError, match="row 'a': a verdict needs a source"):
            Row("a", "1", "1", passed)


def test_an_item_passes_if_every_row_with_a_source_does(results):
    def passed(*rows: Row) -> bool | None:
        return Fake("it", has_rows=rows).passed(results)

    good, bad = (Row("a", "1", "1", it, source=TEXT) for it in (True, False))
    missing, noted = Row("a", "1", None, None, source=TEXT), Row("found by trial", "1", "7", None)
    assert passed(good, noted) is True
    assert passed(good, bad, missing) is False
    assert passed(good, missing, noted) is None
    assert passed(noted) is passed() is None


# In a browser.


def check(it: Opened, items: tuple[Item, ...]) -> None:
    page = it.page
    for item in items:
        assert page.locator(f"section#{item.name}").is_visible(), item.name
        assert page.locator(f"table.summary a[href='#{item.name}']").is_visible(), item.name
    for plot in page.locator("figure:first-of-type svg.plot").all():  # of each section
        page.mouse.move(0, 0)
        plot.scroll_into_view_if_needed()
        plot.hover()
        if plot.locator("path[data-v]:not([data-v=''])").count():
            assert re.search(r"\d", page.locator("#tip").inner_text())
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(over) == 0  # nothing makes the whole page scroll sideways
    spilled = """[...document.querySelectorAll("svg.plot")].flatMap((plot) => {
      const edge = plot.getBoundingClientRect();
      return [...plot.querySelectorAll("text")].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.left < edge.left - 1 || box.right > edge.right + 1
          || box.top < edge.top - 1 || box.bottom > edge.bottom + 1;
      }).map((text) => text.textContent);
    })"""
    assert page.evaluate(spilled) == []  # no label is cut off
    assert it.requests == []
    assert it.errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(results, browser, width):
    writer.write(PAPER, results, Path("page.html"))
    it = opened(browser, Path("page.html"), width)
    check(it, ITEMS)
    panels = [p.bounding_box() for p in it.page.locator("section#toy svg.plot").all()]
    assert (panels[0]["y"] == panels[1]["y"]) == (width > 1000)  # beside or below each other
    wide = it.page.locator(".scroll", has_text="column 7")
    scrolls = wide.evaluate("(it) => it.scrollWidth > it.clientWidth")
    assert scrolls == (width < 1000)
    it.page.close()


def test_hovering_shows_the_values_of_the_nearest_points(results, browser):
    writer.write(PAPER, results, Path("page.html"))
    it = opened(browser, Path("page.html"), 1280)
    plot = it.page.locator("section#toy svg.plot").first
    path = plot.locator("path[data-v]").first  # synapse 0, its last point
    path.scroll_into_view_if_needed()
    x, y = path.evaluate(
        """(path) => {
          const at = path.getPointAtLength(path.getTotalLength());
          const on = new DOMPoint(at.x, at.y).matrixTransform(path.getScreenCTM());
          return [on.x, on.y];
        }"""
    )
    tip = it.page.locator("#tip")
    assert not tip.is_visible()
    it.page.mouse.move(x + 2, y + 2)
    value = svg.number(-2e-4 * math.exp(-15 / 6))
    assert tip.inner_text().splitlines() == [
        "step k: 15",
        f"synapse 0, −∇ BPTT: {value}",
        f"synapse 0, Δ rule: {value}",  # lies on it
    ]
    it.page.mouse.move(2, 2)
    assert not tip.is_visible()
    it.page.close()


def test_the_report_of_this_repository(tmp_path, monkeypatch, browser):
    from eqprop.papers.continual_ep.catalogue import CATALOGUE

    stored = Results(Path(__file__).parent.parent / "results")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.html").write_text(html.page(CATALOGUE, stored, []), "utf-8")
    for width in (1280, 390):
        it = opened(browser, Path("page.html"), width)
        check(it, CATALOGUE.items)
        it.page.close()
