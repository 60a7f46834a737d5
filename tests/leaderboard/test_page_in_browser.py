"""The page in a real browser, from disk and without a network."""

import shutil

import made_records as made
import numpy as np
import pytest
from made_tables import ERM, LABEL, MR2, add_ranking_runs, fill

from classfair_leaderboard.page import write_page
from classfair_leaderboard.reporting import read

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]
HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
NAMES = ["shirt", HOSTILE, "bag", "boot"]


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs the extra browser")
    with api.sync_playwright() as started:
        # Chromium's own sandbox does not work for root, as which tests may run.
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser, plugins, tmp_path):
    """Return the page, opened; at the end nothing may have been asked of the network or failed."""
    results = tmp_path / "r"
    fill(results, erm=ERM, mr2=MR2)
    method = made.method("sam", label=HOSTILE)
    dataset = {"classes": NAMES, "headline": "overall"}
    for seed in range(3):
        cell = made.cell("sam", seed, method=method)
        made.write(results, cell, made.exactly(LABEL, [0.7, 0.7, 0.9, 0.3]), dataset=dataset)
    for path in results.glob("erm--*"):
        record = made.Record.load(path / "record.json")
        named = record.model_copy(update={"dataset": dataset, "own_digest": ""})
        named.sealed().save(path / "record.json")
    add_ranking_runs(results, ERM)
    write_page(read(results), plugins, tmp_path / "out")
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "request",
        lambda request: request.url.startswith("file:") or trouble.append(request.url),
    )
    page.on("requestfailed", lambda request: trouble.append(f"failed: {request.url}"))
    page.goto((tmp_path / "out" / "index.html").as_uri())
    yield page
    assert page.title() == "classfair leaderboard"
    assert trouble == []
    context.close()


def column(page, place: int, grid: str = "[data-ranking]:not([hidden])") -> list[str]:
    rows = page.locator(f"#t0 {grid} tbody tr:not([hidden])")
    return [rows.nth(i).locator("th, td").nth(place).inner_text() for i in range(rows.count())]


def head(page, place: int, grid: str = "[data-ranking]:not([hidden])"):
    return page.locator(f"#t0 {grid} thead th").nth(place)


def test_figures_load_from_disk(opened) -> None:
    images = opened.locator("img")
    assert images.count() > 4
    for i in range(images.count()):
        images.nth(i).scroll_into_view_if_needed()
    opened.wait_for_function("Array.from(document.images).every((i) => i.naturalWidth > 0)")


def test_a_click_sorts_by_the_exact_number_and_another_the_other_way(opened) -> None:
    before = column(opened, 0)
    head(opened, 4).get_by_role("button").click()
    assert head(opened, 4).get_attribute("aria-sort") == "descending"
    values = [float(text.split()[0]) for text in column(opened, 4)]
    assert values == sorted(values, reverse=True)
    head(opened, 4).get_by_role("button").click()
    assert [float(text.split()[0]) for text in column(opened, 4)] == sorted(values)
    head(opened, 0).get_by_role("button").click()
    assert head(opened, 4).get_attribute("aria-sort") is None
    assert column(opened, 0) == sorted(before)


def test_the_keyboard_sorts_too(opened) -> None:
    head(opened, 1).get_by_role("button").focus()
    opened.keyboard.press("Enter")
    assert head(opened, 1).get_attribute("aria-sort") == "descending"
    opened.keyboard.press("Tab")
    assert head(opened, 2).get_by_role("button").evaluate("(b) => b === document.activeElement")


def test_filtering_hides_rows_and_says_how_many_are_left(opened) -> None:
    opened.locator("#t0 .filter").fill("mr")
    assert column(opened, 0) == ["MR2"] or column(opened, 0)[0].startswith("MR2")
    assert opened.locator("#t0 .count").inner_text() == "1 of 3 rows"
    opened.locator("#t0 .filter").fill("")
    assert len(column(opened, 0)) == 3
    assert opened.locator("#t0 .count").inner_text() == ""


def test_another_ranking_shows_another_table(opened) -> None:
    before = column(opened, 4)
    opened.locator("#t0 .ranking").select_option("own")
    assert opened.locator("#t0 [data-ranking]:not([hidden])").count() == 1
    assert column(opened, 4) != before


def test_the_view_by_class_compares_any_two_methods(opened) -> None:
    grid = ".scroll:has(.classes)"
    assert set(column(opened, 0, grid)) == set(NAMES)
    opened.locator("#t0 .method").select_option(label=HOSTILE)
    mine = [float(text) for text in column(opened, 4, grid)]
    theirs = [float(text) for text in column(opened, 3, grid)]
    differences = [float(text) for text in column(opened, 5, grid)]
    assert sorted(mine) == [30, 70, 70, 90]
    assert differences == pytest.approx(list(np.subtract(mine, theirs)), abs=0.11)
    assert head(opened, 4, grid).inner_text().strip() == HOSTILE
    head(opened, 5, grid).get_by_role("button").click()
    sorted_ = [float(text) for text in column(opened, 5, grid)]
    assert sorted_ == sorted(differences, reverse=True)
    opened.locator("#t0 .baseline").select_option(label="MR2")
    kept = [float(text) for text in column(opened, 5, grid)]
    assert kept == sorted(kept, reverse=True)


def test_light_and_dark_by_the_system_and_by_the_button(opened) -> None:
    def ground() -> str:
        return opened.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    opened.emulate_media(color_scheme="dark")
    dark = ground()
    assert dark != light
    opened.locator("#theme").click()
    assert ground() == light
    assert opened.locator("#theme").get_attribute("aria-pressed") == "false"
    opened.locator("#theme").click()
    assert ground() == dark


def test_provenance_opens(opened) -> None:
    row = opened.locator("#t0 > details").nth(1)
    row.locator("> summary").click()
    row.locator("details summary").first.click()
    assert "a CPU" in row.locator("dl").first.inner_text()


def test_a_phone_scrolls_tables_not_the_page(opened) -> None:
    opened.set_viewport_size({"width": 360, "height": 700})
    width = opened.evaluate("document.documentElement.scrollWidth")
    assert width <= 360
