"""recipes/paper.py: a table is run, kept, and written again."""

import json
import shutil


def test_a_table_is_run_and_goes_on_where_it_stopped(small_store, tmp_path, repository, call_recipe):
    shutil.copy(repository / "recipes" / "configs" / "paper" / "profiles.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\nsource: nobody\n"
        "columns: {loss: {metric: mlm_loss, unit: nats}, shown: {evaluate: {mask_rate: 0, keep_rate: 1, random_rate: 0}, metric: mlm_loss}}\n"
        "rows: {untrained: {untrained: true}, trained: {}}\n"
        "claims: [{better: trained, worse: untrained, column: loss, expected: must}]\n"
    )
    flags = ["--tables", tmp_path / "mine.yaml", "--profile", "smoke", "--num_seeds", 1, "--store", small_store]
    output = tmp_path / "runs"
    said = call_recipe("paper", *flags, "--output_dir", output)
    assert "| trained better than untrained | loss | must |" in said
    described = json.loads((output / "mine" / "table.json").read_text())
    assert {run["recipe"] for run in described["runs"]} == {"pretrain", "evaluate_checkpoint"}
    assert len(described["runs"]) == 4
    assert (output / "mine" / "table.png").stat().st_size > 1000
    known = json.loads((output / "runs.json").read_text())
    gone = next(key for key, run in known.items() if run["recipe"] == "evaluate_checkpoint")
    (output / "runs.json").write_text(json.dumps({key: run for key, run in known.items() if key != gone}))
    shutil.rmtree(output / gone)
    assert call_recipe("paper", *flags, "--output_dir", output) == said
    again = json.loads((output / "runs.json").read_text())
    assert [again[key] for key in known if key != gone] == [run for key, run in known.items() if key != gone]
    assert again[gone]["figures"]["eval_mlm_loss"] == known[gone]["figures"]["eval_mlm_loss"]
