"""The page is one file that loads nothing, runs nothing and shows every text as it is."""

import re
from html import escape
from html.parser import HTMLParser

import pytest

from bert_recipes.reports import markdown
from bert_recipes.reports.palette import COLORS
from bert_recipes.reports.writing import write_report


class Seen(HTMLParser):
    """Tags, attributes and the text of a page; fails on tags that are not closed in order."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        self.texts.append(data)


HISTORY = [{"step": step, "mlm_loss": 9 - step / 10, "loss": 1.0, "eval_mlm_loss": 8.0} for step in range(1, 20)]


@pytest.fixture(scope="module", params=["pretraining", "finetuning"])
def page(request, make_lasting_run_folder, pretraining_facts, finetuning_facts, evil):
    facts = pretraining_facts if request.param == "pretraining" else finetuning_facts
    results = {"model": evil, "eval_accuracy": 0.75, "eval_mlm_loss": 5.0, "eval_mlm_accuracy": 0.5, "date": evil}
    results |= {"splits": {evil: {"examples": 16, "features": 16}}, "train_steps": 20}
    # As a folder may be called.
    name = f"<script>alert(2)<script>$x_{{ &{request.param}"
    folder = make_lasting_run_folder(name, results=results, history=HISTORY, facts=facts)
    write_report(folder)
    return folder


def test_evil_texts_stay_texts(page, evil):
    seen = Seen((page / "report.html").read_text())
    assert not seen.open
    assert "script" not in seen.tags
    assert "img" not in seen.tags
    assert not [name for _, name, _ in seen.attributes if name.startswith("on")]
    assert evil in "".join(seen.texts)
    assert page.name in seen.texts
    assert escape(evil) in (page / "report.html").read_text()


def test_evil_texts_stay_in_their_cells_of_markdown(page):
    text = (page / "report.md").read_text()
    assert not re.search(r"(?<!\\)<(script|img)", text)
    assert not re.search(r"!\[[^\]]*\]\(http", text)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
        assert len(widths) == 1, block


@pytest.mark.parametrize("mark", ["<b>", "|"])
@pytest.mark.parametrize("before", ["", "\\", "\\\\"])
def test_a_backslash_of_a_text_takes_none_away(mark, before):
    shown = markdown.escape(before + mark)
    backslashes = shown.index(mark)
    assert backslashes == 2 * len(before) + 1  # an odd number: the last one is the mark's


def test_nothing_is_loaded_from_anywhere(page):
    text = (page / "report.html").read_text()
    seen = Seen(text)
    for tag, name, value in seen.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"):
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert "url(" not in value or re.fullmatch(r".*url\(#[\w-]+\).*", value), (tag, name, value)
    assert not re.search(r"@import|@font-face|url\((?!#)", re.sub(r"<(main|svg).*?</\1>", "", text, flags=re.DOTALL))
    policy = [value for tag, name, value in seen.attributes if name == "content" and value.startswith("default-src")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert "xmlns" not in text


def test_ids_are_there_once_and_every_reference_has_its_own(page):
    attributes = Seen((page / "report.html").read_text()).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for _, name, value in attributes if name in ("href", "xlink:href") and value.startswith("#")}
    wanted |= {part for _, _, value in attributes for part in re.findall(r"url\(#([\w-]+)\)", value)}
    assert wanted
    assert wanted <= set(ids)


def test_every_colour_of_a_plot_is_one_of_the_page(page):
    text = (page / "report.html").read_text()
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}", drawn)
    used = set(re.findall(r"var\(--(\w+)\)", drawn))
    assert {"ink", "muted", "line", "blue"} - {"ink"} <= used <= COLORS.keys()
    for name, color in COLORS.items():
        assert text.count(f"--{name}:{color.light};") == text.count(f"--{name}:{color.dark};") == 1


def test_a_report_is_the_same_every_time(page):
    first = {path.name: path.read_bytes() for path in write_report(page)}
    assert {path.name: path.read_bytes() for path in write_report(page)} == first
