import json

import pytest

from bert_recipes.reports.writing import write_report


def combination(rate, values):
    median = sorted(value for value in values if value is not None)[0] if any(values) else None
    runs = [{"seed": seed, "folder": f"{rate}/seed-{seed}", "value": value} for seed, value in enumerate(values)]
    return {
        "name": f"learning_rate-{rate}",
        "settings": {"learning_rate": rate, "num_train_epochs": "3"},
        "median": median,
        "min": median,
        "max": median,
        "std": None,
        "runs": runs,
    }


@pytest.fixture
def sweep(tmp_path, evil):
    folder = tmp_path / "sweep"
    folder.mkdir()
    content = {
        "metric": "f1",
        "best": "learning_rate-3e-5",
        "best_run": "learning_rate-3e-5/seed-0",
        "combinations": [combination("5e-5", [None, 0.5]), combination("3e-5", [0.8, 0.9]), combination(evil, [None])],
        "settings": {"flags": ["--task", evil], "sweep": {"learning_rate": ["5e-5", "3e-5"]}},
        "machine": {"processor": "a processor"},
    }
    (folder / "sweep.json").write_text(json.dumps(content))
    return folder


def test_a_sweep_has_a_page_with_its_plot_and_marks_the_best(sweep, evil):
    names = {path.name for path in write_report(sweep)}
    assert names == {"report.md", "report.html", "sweep.png"}
    text, page = (sweep / "report.md").read_text(), (sweep / "report.html").read_text()
    assert "| 3e-5 | **0.8000** | 0.8000 | 0.8000 |  | 2 |" in text
    assert "| diverged | diverged | diverged |" in text
    assert "![sweep](sweep.png)" in text
    assert page.count("<svg") == 1
    assert "<script" not in page
    assert "<b>3e-5</b>" in page


def test_a_damaged_sweep_is_one_line(sweep):
    from bert_recipes.errors import InputError

    (sweep / "sweep.json").write_text('{"metric": "f1"}')
    with pytest.raises(InputError, match="cannot be read as a report"):
        write_report(sweep)


@pytest.mark.parametrize("lead", ["Not resolved: a and b are 0.0025 apart.", "a and b are 0.1 apart.", None])
def test_a_lead_that_is_not_resolved_must_not_be_overlooked(sweep, lead):
    content = json.loads((sweep / "sweep.json").read_text()) | {
        "lead": lead,
        "how_chosen": "It has the greatest median.",
    }
    (sweep / "sweep.json").write_text(json.dumps(content))
    write_report(sweep)
    lines = (sweep / "report.md").read_text().splitlines()
    assert (f"**Attention:** {lead}" in lines) is (lead is not None and lead.startswith("Not"))
    assert (lead in lines) is (lead is not None and not lead.startswith("Not"))
    assert "It has the greatest median. `best` is learning_rate-3e-5/seed-0, with a report of its own." in lines
    page = (sweep / "report.html").read_text()
    assert "2 runs, 0.8000 to 0.8000" in page
    assert "Best" not in page
