"""The figures in docs/export.md are those of the committed reports."""

import json
import re

from bert_recipes.exporting.report import format_report, format_table


def test_the_page_shows_the_committed_reports_and_no_other_figures(repository):
    page = (repository / "docs" / "export.md").read_text(encoding="utf-8")
    files = sorted((repository / "docs" / "results").glob("export_*.json"))
    assert set(re.findall(r"\(results/(export_\w+\.json)\)", page)) == {file.name for file in files}
    # A row of a table that no report stands behind.
    assert page.count("| onnxruntime, fp32 |") == len(files)
    for file in files:
        report = json.loads(file.read_text(encoding="utf-8"))
        assert format_table(report) in page, f"{file.name}: the page shows other figures"
        assert file.with_suffix(".md").read_text(encoding="utf-8") == format_report(report)
