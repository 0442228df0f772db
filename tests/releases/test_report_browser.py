"""The report in headless Chromium: nothing overlaps, is cut off or makes the page scroll sideways.

Slow; skipped where there is no Chromium.
"""

import html
import json
import re
import shutil
import subprocess

import pytest
from picture_support import KINDS_OF_SHAPES, release_of_shapes

from dpquery.releases.report.page import page

pytestmark = pytest.mark.slow

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)
WIDTHS = (400, 800, 1400)

MEASURE = r"""
const faults = [], page = document.documentElement;
document.querySelectorAll("details").forEach(part => { part.open = true; });
if (page.scrollWidth > window.innerWidth) faults.push(`the page is ${page.scrollWidth} wide`);
let charts = 0, texts = 0, smallest = 99;
const overlap = (a, b) => Math.min(Math.min(a.right, b.right) - Math.max(a.left, b.left) - 1,
                                   Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) - 3);
document.querySelectorAll(".plot, table.points").forEach(chart => {
  const frame = chart.getBoundingClientRect();
  const name = chart.querySelector("svg[aria-label], caption");
  const called = name.ariaLabel || name.textContent;
  if (!frame.width) return;
  charts += 1;
  const boxes = [...chart.querySelectorAll("i, tbody th, tbody td:last-child")].map(text =>
    [text.textContent, text.getBoundingClientRect(), parseFloat(getComputedStyle(text).fontSize)]);
  if (boxes.length < 2) faults.push(`${called}: an axis is lost`);
  texts += boxes.length;
  boxes.forEach(([text, box, size], k) => {
    smallest = Math.min(smallest, size);
    if (box.left < frame.left - 1 || box.right > frame.right + 1
        || box.top < frame.top - 12 || box.bottom > frame.bottom + 1)
      faults.push(`${called}: ${text} is cut off`);
    boxes.slice(0, k).forEach(([other, around]) => {
      if (overlap(box, around) > 0) faults.push(`${called}: ${text} stands on ${other}`);
    });
  });
});
const blocksOfText = "article, section, figure, .reading, .tile, .legend li, p, h1, h2, h3, h4";
document.querySelectorAll(`${blocksOfText}, summary`).forEach(part => {
    const box = part.getBoundingClientRect();
    if (box.width && !part.closest(".skip") && (box.right > page.clientWidth + 1 || box.left < -1))
      faults.push(`${part.tagName} sticks out: ${part.textContent.slice(0, 40)}`);
  });
const blocks = [...document.querySelectorAll("article > *, .item > *, figure > *, .legend li")];
blocks.forEach(one => blocks.forEach(two => {
  if (one.compareDocumentPosition(two) & Node.DOCUMENT_POSITION_FOLLOWING && !one.contains(two)
      && one.getBoundingClientRect().width && two.getBoundingClientRect().width
      && overlap(one.getBoundingClientRect(), two.getBoundingClientRect()) > 0)
    faults.push(`${one.tagName}.${one.className} lies on ${two.tagName}.${two.className}`);
}));
parent.postMessage(JSON.stringify(
  {width: window.innerWidth, charts, texts, smallest, faults: faults.slice(0, 20)}), "*");
"""


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return CHROMIUM


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return page(release_of_shapes(tmp_path_factory.mktemp("shapes")))


def run(browser, folder, *arguments):
    profile = folder / "profile"
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={profile}", *arguments],
        capture_output=True,
        timeout=120,
        check=True,
    )
    shutil.rmtree(profile, ignore_errors=True)
    return done.stdout.decode()


def measured(browser, folder, text, width):
    """What a script finds in the page in a frame of a width: the page itself allows no script."""
    inside = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    inside += f"<script>addEventListener('load', () => {{{MEASURE}}})</script>"
    outer = (
        "<!doctype html><pre></pre><script>addEventListener('message', event => {"
        "document.querySelector('pre').textContent = event.data;"
        "document.querySelector('iframe').remove(); })</script>"
        f'<iframe style="border:0;width:{width}px;height:1000px" srcdoc="{html.escape(inside)}">'
        "</iframe>"
    )
    (folder / "frame.html").write_text(outer, encoding="utf-8")
    dumped = run(
        browser,
        folder,
        "--window-size=1600,1200",
        "--virtual-time-budget=20000",
        "--dump-dom",
        f"file://{folder}/frame.html",
    )
    return json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", dumped, re.DOTALL)[1]))


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overlaps_is_cut_off_or_scrolls(browser, text, tmp_path, width):
    seen = measured(browser, tmp_path, text, width)
    assert seen["faults"] == []
    assert seen["width"] == width
    assert seen["charts"] >= len(KINDS_OF_SHAPES)
    assert seen["texts"] > 300
    assert seen["smallest"] >= 11


def test_the_check_sees_what_overlaps_and_what_scrolls(browser, text, tmp_path):
    broken = text.replace(" font-size: 12px;\n  padding-right: 18px", " font-size: 40px;")
    assert broken != text
    assert any("stands on" in fault for fault in measured(browser, tmp_path, broken, 800)["faults"])
    wide = text.replace(".panel { min-width: 0; }", ".panel { min-width: 700px; }")
    seen = measured(browser, tmp_path, wide, 400)
    assert any("wide" in fault for fault in seen["faults"])


def test_it_can_be_printed(browser, text, tmp_path):
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    target = tmp_path / "page.pdf"
    run(browser, tmp_path, f"--print-to-pdf={target}", f"file://{tmp_path}/page.html")
    content = target.read_bytes()
    assert content.startswith(b"%PDF")
    assert 5 < len(re.findall(rb"/Type\s*/Page\b", content)) < 50
