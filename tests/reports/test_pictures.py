"""Reports in a real browser: they show, on every screen, and ask nothing of anybody."""

import runpy
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from bert_recipes.browser import Browser
from bert_recipes.chromium import find_browser
from bert_recipes.errors import InputError
from bert_recipes.reports.palette import COLORS
from bert_recipes.reports.pictures import take_pictures
from bert_recipes.reports.writing import write_report


needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")
KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("kind", KINDS)
def test_a_report_shows_in_a_browser_that_reaches_nobody(tiny_runs, kind, browser):
    page = tiny_runs(kind) / "report.html"
    browser.requests.clear()
    browser.messages.clear()
    browser.open(page.as_uri())
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]
    assert browser.messages == [], "nothing was tried that the page's policy forbids"
    assert browser.evaluate("document.querySelector('h1').innerText") == "run"
    num_plots = browser.evaluate("document.querySelectorAll('svg').length")
    assert num_plots == page.read_text(encoding="utf-8").count("<svg") >= 1
    assert kind == "question_answering" or "Worst errors" in browser.evaluate("document.body.innerText")


@pytest.mark.slow
@needs_browser
def test_evil_texts_are_shown_and_do_nothing(make_run_folder, finetuning_facts, evil, browser):
    folder = make_run_folder(facts=finetuning_facts)
    write_report(folder)
    page = (folder / "report.html").as_uri()
    browser.requests.clear()
    browser.messages.clear()
    browser.open(page)
    assert [url for url in browser.requests if not url.startswith("data:")] == [page]
    assert browser.messages == []
    assert browser.evaluate("document.querySelectorAll('script, img').length") == 0
    assert evil in browser.evaluate("document.querySelector('main').textContent")


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_report_is_light_or_dark(tiny_runs, dark, browser, tmp_path):
    browser.set_window((700, 500), dark=dark)
    browser.open((tiny_runs("sequence_classification") / "report.html").as_uri())
    browser.take_picture(tmp_path / "page.png")
    pixels = (imread(tmp_path / "page.png")[..., :3] * 255).round().astype(int)
    assert pixels.shape == (500, 700, 3)
    colors = {"".join(f"{part:02x}" for part in color) for color in np.unique(pixels.reshape(-1, 3), axis=0)}
    for name in ("ground", "card"):
        assert (COLORS[name].dark if dark else COLORS[name].light)[1:] in colors
        assert (COLORS[name].light if dark else COLORS[name].dark)[1:] not in colors
    assert len(colors) > 50  # letters and bars


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_wider_than_a_telephone(tiny_runs, kind, browser):
    browser.set_window((360, 800))
    browser.open((tiny_runs(kind) / "report.html").as_uri())
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
@needs_browser
def test_pictures_of_a_page_and_of_a_part_of_it(
    repository, make_run_folder, finetuning_facts, tmp_path, monkeypatch, capsys
):
    folder, output = make_run_folder(facts=finetuning_facts), tmp_path / "pictures"
    write_report(folder)
    recipe = str(repository / "recipes" / "take_screenshots.py")
    command = [recipe, "--folders", folder, "--output_dir", output, "--parts", "worst-errors", "by-class"]
    monkeypatch.setattr(sys, "argv", list(map(str, command)))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(recipe, run_name="__main__")
    names = ("run.png", "run_phone.png", "run_worst-errors.png", "run_by-class.png")
    assert (ended.value.code, capsys.readouterr().out.split()) == (0, [str(output / name) for name in names])
    pictures = {path.name: imread(path)[..., :3] for path in output.iterdir()}
    assert pictures.keys() == set(names)
    assert (pictures["run.png"].shape[:2], pictures["run_phone.png"].shape[:2]) == ((1250, 1120), (1100, 412))
    assert pictures["run.png"].mean() > 0.5 > pictures["run_phone.png"].mean()  # dark
    for name in names[2:]:
        height, width = pictures[name].shape[:2]
        assert width == 1120
        assert 100 < height < 1250, f"{name}: no higher than the part"
        assert pictures[name].std() > 0.02, f"{name}: nothing is drawn"


@pytest.mark.slow
@needs_browser
def test_a_long_part_is_taken_to_its_end(make_run_folder, pretraining_facts, tmp_path):
    mask = pretraining_facts["held_out"]["masks"][0] | {"before": "many words " * 60}
    folder = make_run_folder(facts=pretraining_facts | {"held_out": {"pairs": 16, "masks": [mask] * 16}})
    write_report(folder)
    *_, path = take_pictures([folder], tmp_path / "pictures", ["held-out-sentences"])
    picture = imread(path)[..., :3]
    assert picture.shape[0] > 2000
    assert (picture[-20:] == picture[-1, -1]).all(), "below the last card there is the page's ground"


def test_mistakes_are_found_before_a_browser_is_started(make_run_folder, finetuning_facts, tmp_path, monkeypatch):
    output = tmp_path / "pictures"
    folders = [make_run_folder(name, facts=finetuning_facts) for name in ("run", "other/run")]
    for folder in folders:
        write_report(folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"folders: .*bare has no report\.html; `make report RUN=.*bare` writes it"):
        next(take_pictures([make_run_folder("bare")], output))
    with pytest.raises(InputError, match="folders: two have one name"):
        next(take_pictures(folders, output))
    with pytest.raises(InputError, match=r"parts: no page has a part 'worst'; allowed: .*worst-errors"):
        next(take_pictures(folders[:1], output, ["worst-errors", "worst"]))
    with pytest.raises(InputError, match="no browser is installed; one of chromium, "):
        next(take_pictures(folders[:1], output, ["worst-errors"]))
    assert not output.exists()
