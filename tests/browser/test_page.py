"""The page of ``log --html`` in a real browser: what it draws, how it is used, and that nothing foreign runs in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from planarian_core import Planarian
from planarian_core.cli.html import page
from planarian_core.cli.log_html import Budget, Changes, picture
from planarian_core.model import (
    Artefact,
    Branch,
    Coverage,
    Domain,
    Drill,
    Gap,
    Hold,
    Outcome,
    ProcessInfo,
    RemotePosition,
    SandboxRecord,
    SandboxSpec,
    Statepoint,
    Status,
)
from planarian_core.registry import Registry

if TYPE_CHECKING:
    from tests.browser.conftest import Browser

pytestmark = pytest.mark.needs("chromium-headless-shell")

HOSTILE = (
    "</script><script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 1'><svg onload='window.ran = 1'>",
    "\"'`${window.ran = 1}]]>--><!--<script>",
    "{{data}} {{script}} &lt;b&gt; &#60;script&#62;",
    "\u202etxt.exe\u2066 \u2028 \u2029 \x00\x1b[2J \ud800",
    "javascript:window.ran=1",
    "__proto__",
)
EVERY = " ".join(HOSTILE)
MOMENT = "2026-01-02T03:04:05.678Z"


@dataclass
class Tree:
    """A home that is filled by writing into its registry."""

    registry: Registry
    folder: Path

    def sandbox(self, name: str, forked_from: str | None = None) -> str:
        key = f"sb-{name}"
        spec = SandboxSpec(key, "/repo", str(self.folder / key), str(self.folder), "directory")
        record = SandboxRecord(spec, f"br-{name}", "copy", "none", MOMENT, name)
        self.registry.add_sandbox(record, Branch(record.branch_id, key, head=forked_from, forked_from=forked_from))
        return key

    def point(self, sandbox: str, number: int, **fields: object) -> Statepoint:
        """The next statepoint of a sandbox; it grows from the head unless ``parent_id`` is given."""
        branch = self.registry.branch(sandbox)
        given = {"parent_id": branch.head, "created_at": MOMENT, "timings": {"frozen": 0.01, "total": 0.02}, **fields}
        point = Statepoint(f"sp-{number:012x}", sandbox, branch.id, **given)  # type: ignore[arg-type]  # as given
        self.registry.add(point)
        if point.status is Status.PENDING:
            return self.registry.commit(point)
        return point

    def write(self, sandbox: str, file: Path, changes: Changes | None = None) -> Path:
        with Planarian.open(self.folder, recover=False) as planarian:
            file.write_text(page(picture(planarian, planarian.sandbox(sandbox), every=True, changes=changes)))
        return file


def changed(text: str) -> Changes:
    """For every statepoint: one file changed, named and filled with ``text``."""

    def changes(point: Statepoint, budget: Budget) -> Mapping[str, Any]:
        paths = budget.rows([("changed", text, text), ("added", "new.py", "")])
        texts = budget.rows([(text, f"@@ -1 +1 @@\n-before\n+{text}\n")], 4000)
        return {
            "summary": "1 added, 1 changed",
            "paths": paths,
            "more": 7,
            "beside": [budget.text(text)],
            "texts": texts,
            "texts_more": 0,
        }

    return changes


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield Tree(planarian.registry, planarian.home)


@pytest.fixture
def family(tree: Tree, tmp_path: Path) -> Path:
    """Work, a rollback, a fork, and a failed snapshot: the page of it."""
    api = tree.sandbox("api")
    tree.point(api, 1, name="clean")
    tree.point(api, 2, description="left behind\nsecond line", automatic=True)
    tree.point(
        api,
        3,
        parent_id="sp-000000000001",
        name="green",
        description="all tests pass",
        facts={"tests": "218 passed"},
        files=Artefact(Domain.FILES, "copy", "x", stored=2048, logical=4096),
        process_list=(ProcessInfo(7, ("python3", "serve.py"), "/repo", "S"),),
        remote=(RemotePosition("tickets", "local", "17"),),
        coverage=Coverage(("files by copy",), (Gap(Domain.PROCESSES, "vim", "needs a terminal"),)),
    )
    tree.registry.add_outcome(Outcome("oc-1", "sp-000000000003", "deployed", "succeeded", "maria", MOMENT))
    tree.registry.holds.put("sp-000000000003", Hold("sp-000000000003", "release", MOMENT))
    tree.registry.drills.put("sp-000000000003", Drill("sp-000000000003", "", 0.02, MOMENT))
    fork = tree.sandbox("idea", "sp-000000000003")
    tree.point(fork, 4, name="cache")
    tree.point(api, 5, status=Status.DISCARDED, error="the disk is full")
    return tree.write(api, tmp_path / "page.html", changed("app.py"))


def details(browser: Browser) -> str:
    return str(browser.js("document.getElementById('details').innerText"))


def selected(browser: Browser) -> list[str]:
    found: list[str] = browser.js("[...document.querySelectorAll('[aria-selected=true]')].map((row) => row.id)")
    return found


def rows(browser: Browser) -> list[str]:
    found: list[str] = browser.js("[...document.querySelectorAll('[role=option]')].map((row) => row.innerText)")
    return found


def test_shows_the_tree_with_its_forks_and_what_was_left(browser: Browser, family: Path) -> None:
    browser.open(family)
    shown = rows(browser)
    assert len(shown) == 5
    assert "discarded" in shown[0]
    assert "cache" in shown[1]
    assert "head of idea" in shown[1]
    for mark in ("green", "head", "fork idea", "succeeded", "held", "1 not captured"):
        assert mark in shown[2]
    assert "left behind" in shown[3]
    assert "returned here" in shown[4]
    assert browser.js("document.querySelectorAll('.row.left').length") == 2  # the failed one and the one left behind
    assert browser.js("document.querySelectorAll('#graph path:not(.cross)').length") == 4, "a line to every parent"


def test_shows_everything_about_the_head(browser: Browser, family: Path) -> None:
    browser.open(family)
    assert selected(browser) == ["row-sp-000000000003"]
    text = details(browser)
    expected = ("all tests pass", "218 passed", "deployed", "by maria", "files by copy", "vim", "needs a terminal")
    for words in (*expected, "python3 serve.py", "tickets", "17", "20.0 ms", "2.0 KiB", "4.0 KiB", "release"):
        assert words in text, words


def test_shows_what_changed(browser: Browser, family: Path) -> None:
    browser.open(family)
    assert "1 added, 1 changed" in rows(browser)[2]
    text = details(browser)
    assert "app.py" in text
    assert "and 7 more" in text
    assert "-before" not in text
    browser.click("#details details summary")
    assert "-before" in details(browser)
    assert browser.js("document.querySelector('.diff .added').innerText") == "+app.py"


def test_a_click_and_links_choose_another(browser: Browser, family: Path) -> None:
    browser.open(family)
    browser.click("#row-sp-000000000004")
    assert selected(browser) == ["row-sp-000000000004"]
    assert "cache" in details(browser)
    browser.click("#details .link")  # its parent
    assert selected(browser) == ["row-sp-000000000003"]
    assert browser.js("location.hash") == "#sp-000000000003"


def test_works_with_the_keyboard_alone(browser: Browser, family: Path) -> None:
    browser.open(family)
    browser.js("document.querySelector('[role=option][tabindex=\"0\"]').focus()")
    for key, chosen in (
        ("ArrowLeft", 1),
        ("ArrowRight", 2),
        ("ArrowUp", 3),
        ("ArrowDown", 2),
        ("Home", 5),
        ("End", 1),
    ):
        browser.press(key)
        assert selected(browser) == [f"row-sp-{chosen:012x}"], key
        assert browser.js("document.activeElement.id") == f"row-sp-{chosen:012x}"
    browser.press("Enter")
    assert browser.js("document.activeElement.id") == "details"
    browser.press("Escape")
    assert browser.js("document.activeElement.id") == "row-sp-000000000001"
    browser.press("/")
    assert browser.js("document.activeElement.id") == "filter"
    assert browser.js("document.querySelectorAll('[role=option][tabindex=\"0\"]').length") == 1


def test_the_filter_finds_by_any_text(browser: Browser, family: Path) -> None:
    browser.open(family)
    browser.click("#filter")
    browser.type("SERVE.py")
    assert [("green" in row) for row in rows(browser)] == [True]
    assert browser.js("document.getElementById('count').innerText") == "1 of 5 statepoints"
    browser.type(" nowhere")
    assert rows(browser) == []
    assert browser.js("document.getElementById('none').checkVisibility()") is True
    browser.js("filter.value = ''; kind.value = 'failed'; kind.dispatchEvent(new Event('change'))")
    assert [("discarded" in row) for row in rows(browser)] == [True]
    browser.js("kind.value = 'ends'; kind.dispatchEvent(new Event('change'))")
    assert len(rows(browser)) == 3
    assert browser.js("document.querySelectorAll('#graph path').length") == 2, "lines lead to the nearest one shown"


def test_every_control_has_a_name_and_the_list_its_roles(browser: Browser, family: Path) -> None:
    browser.open(family)
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node.get("ignored", False)
    ]
    controls = {"listbox", "option", "searchbox", "combobox", "button", "region", "heading", "image"}
    assert {role for role, _ in named} >= controls - {"image"}
    assert [(role, name) for role, name in named if role in controls and not name] == []
    assert browser.js("document.documentElement.lang") == "en"


@pytest.mark.parametrize("dark", [False, True])
def test_is_readable_in_light_and_dark(browser: Browser, family: Path, dark: bool) -> None:
    browser.open(family, dark=dark)
    found = browser.js(CONTRAST)
    assert len(found) > 30
    assert min(ratio for ratio, _ in found) >= 4.5, min(found)
    paper = browser.js("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 200) is dark


CONTRAST = """
[...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && !one.closest('.hidden')
    && [...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim())).map((one) => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => rgb.slice(0, 3).map(linear)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  let behind = one;
  while (parts(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const [a, b] = [light(parts(getComputedStyle(one).color)), light(parts(getComputedStyle(behind).backgroundColor))];
  return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.outerHTML.slice(0, 200)];
})"""


def test_fits_a_phone(browser: Browser, family: Path) -> None:
    browser.open(family, 360, 740)
    assert browser.js("document.documentElement.scrollWidth") <= 360
    assert browser.js("document.getElementById('details').checkVisibility()") is False
    browser.click("#row-sp-000000000003")
    assert browser.js("document.getElementById('details').checkVisibility()") is True
    assert browser.js("document.getElementById('details').scrollWidth") <= 360
    browser.click("#details .close")
    assert browser.js("document.getElementById('details').checkVisibility()") is False
    assert browser.js("document.activeElement.id") == "row-sp-000000000003"


@pytest.fixture
def hostile(tree: Tree, tmp_path: Path) -> Path:
    """The page of 2,000 statepoints whose every text wants to be more than text."""
    api = tree.sandbox(EVERY[:90])
    gaps = tuple(Gap(Domain.PROCESSES, text, text) for text in HOSTILE)
    for number in range(1, 2000):
        text = HOSTILE[number % len(HOSTILE)]
        tree.point(api, number, description=text, name=text[:40] if number % 5 == 0 else "")
    tree.point(
        api,
        2000,
        name=EVERY,
        description=EVERY + "a" * 3_000_000,
        facts={text: text for text in HOSTILE},
        process_list=tuple(ProcessInfo(n, (*HOSTILE, "x" * 5000), EVERY, "S") for n in range(3000)),
        remote=(RemotePosition(EVERY, EVERY, EVERY),),
        coverage=Coverage(HOSTILE, gaps * 200),
        timings={EVERY: 0.01, "frozen": 0.01},
    )
    for number, text in enumerate(HOSTILE):
        tree.registry.add_outcome(Outcome(f"oc-{number}", f"sp-{2000:012x}", text, text, text, text))
    tree.registry.holds.put(f"sp-{2000:012x}", Hold(f"sp-{2000:012x}", EVERY, MOMENT))
    return tree.write(api, tmp_path / "hostile.html", changed(EVERY))


def test_hostile_texts_stay_text(browser: Browser, hostile: Path) -> None:
    before = len(browser.requests)
    browser.problems.clear()
    assert hostile.stat().st_size < 12_000_000
    browser.open(hostile)
    assert browser.js("document.querySelectorAll('[role=option]').length") == 2000
    assert browser.js("document.querySelectorAll('#graph circle').length") >= 2000
    for number in (2000, 1999, 1994, 7, 1):
        browser.click(f"#row-sp-{number:012x}")
        assert selected(browser) == [f"row-sp-{number:012x}"]
    browser.click(f"#row-sp-{2000:012x}")
    text = details(browser)
    for part in ("<script>window.ran = 1</script>", "onerror='window.ran = 1'", "{{data}}", "&lt;b&gt;", "__proto__"):
        assert part in text
    assert "characters left out" in text
    assert "more processes" in text
    assert re.search("[\u202a-\u202e\u2066-\u2069\x1b]", text) is None
    assert browser.js("window.ran") is None
    assert browser.js("document.querySelectorAll('img, iframe, object, a, link, #details script').length") == 0
    assert browser.js("document.querySelectorAll('script').length") == 2
    assert browser.problems == []
    assert {url for url in browser.requests[before:] if url != "about:blank"} == {hostile.as_uri()}


def test_the_policy_forbids_what_the_page_does_not_need(browser: Browser, family: Path) -> None:
    browser.open(family)
    browser.problems.clear()
    attempts = (
        "document.body.innerHTML = '<b>x</b>'",
        "document.body.setAttribute('onclick', 'window.ran = 1')",
        "const made = document.createElement('script'); made.textContent = 'window.ran = 1'",
    )
    for attempt in attempts:
        assert browser.js(f"(() => {{ try {{ {attempt} }} catch {{ return 'refused' }} }})()") == "refused", attempt
    browser.js("document.addEventListener('securitypolicyviolation', (event) => window.blocked = event.blockedURI)")
    browser.js("new Image().src = 'https://localhost/x.png'")
    browser.until("window.blocked === 'https://localhost/x.png'")
    assert browser.js("window.ran") is None


def test_nothing_in_the_page_names_another_place(family: Path) -> None:
    text = family.read_text()
    assert re.search(r"https?:|//[a-z]|url\(|@import|src=|href=", re.sub(r"// .*", "", text)) is None
    assert "default-src 'none'" in text


def test_the_same_registry_gives_the_same_page(tree: Tree, tmp_path: Path) -> None:
    tree.point(tree.sandbox("api"), 1, name="one")
    pages = [tree.write("sb-api", tmp_path / f"{number}.html").read_text() for number in (1, 2)]
    moments = [json.loads(re.findall(r'"generated_at":(".*?")', text)[0]) for text in pages]
    assert pages[0].replace(moments[0], "then") == pages[1].replace(moments[1], "then")


def test_a_sandbox_without_statepoints(browser: Browser, tree: Tree, tmp_path: Path) -> None:
    tree.sandbox("api")
    browser.open(tree.write("sb-api", tmp_path / "page.html"))
    assert "There is no statepoint yet" in details(browser)
