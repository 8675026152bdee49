"""paper/run.py: a table is run, kept, and written again."""

import json
import shutil

import pytest

from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.mark.slow
def test_a_table_is_run_and_goes_on_where_it_stopped(
    small_store,
    tmp_path,
    repository,
    call_paper,
):
    shutil.copy(repository / "paper" / "tables" / "profiles.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\nsource: nobody\n"
        "columns: {loss: {metric: mlm_loss, unit: nats}, shown: {evaluate: {mask_rate: 0, "
        "keep_rate: 1, random_rate: 0}, metric: mlm_loss}}\n"
        "pretrain: {save_strategy: steps, save_steps: 0.25, save_total_limit: null, "
        "per_device_eval_batch_size: 2}\n"
        "evaluate: {per_device_eval_batch_size: 2}\n"
        "rows: {untrained: {untrained: true}, first: {checkpoint: 1}, trained: {}, far: "
        "{profiles: [gpu]}}\n"
        "claims: [{better: trained, worse: untrained, column: loss, expected: must}]\n"
    )
    flags = f"--tables {tmp_path}/mine.yaml --profile smoke --num_seeds 1 --store {small_store}"
    output = tmp_path / "runs"
    said = call_paper("run", flags, "--output_dir", output)
    assert "| trained better than untrained | loss | must |" in said
    described = json.loads((output / "mine_smoke" / "table.json").read_text())
    assert {run["recipe"] for run in described["runs"]} == {"pretrain", "evaluate_checkpoint"}
    # Two of the finished models, one of the first checkpoint, two of the untrained one.
    assert len(described["runs"]) == 5
    figures = {row["name"]: row["figures"] for row in described["rows"]}
    assert list(figures) == ["untrained", "first", "trained"]
    assert figures["first"]["loss"] == {}
    assert len({row["shown"]["1"] for row in figures.values()}) == 3
    assert (output / "mine_smoke" / "table.png").stat().st_size > 1000
    assert "**not resolved**: one seed has no interval" in said
    assert {len(run["figures"]["jackknife"]["mlm_loss"]) for run in described["runs"]} == {8}
    known = json.loads((output / "runs.json").read_text())
    gone = next(key for key, run in known.items() if run["recipe"] == "evaluate_checkpoint")
    (output / "runs.json").write_text(
        json.dumps({key: run for key, run in known.items() if key != gone})
    )
    shutil.rmtree(output / gone)
    assert call_paper("run", flags, "--output_dir", output) == said
    again = json.loads((output / "runs.json").read_text())
    assert [again[key] for key in known if key != gone] == [
        run for key, run in known.items() if key != gone
    ]
    assert again[gone]["figures"]["eval_mlm_loss"] == known[gone]["figures"]["eval_mlm_loss"]


@pytest.mark.slow
def test_an_estimate_trains_no_table_and_says_in_a_line_what_it_cannot_take(
    small_store,
    tmp_path,
    repository,
    call_paper,
):
    shutil.copy(repository / "paper" / "tables" / "profiles.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\nsource: nobody\ncolumns: {loss: {metric: mlm_loss}, SST-2: {task: sst2, "
        "metric: accuracy}}\n"
        "rows: {untrained: {untrained: true}, trained: {}}\n"
    )
    flags = f"--tables {tmp_path}/mine.yaml --profile smoke --num_seeds 1 --store {small_store}"
    flags += " --estimate true --output_dir"
    said = call_paper("run", flags, tmp_path / "runs", "--data_dir", repository / "tests", code=1)
    assert "untrained: SST-2: no estimate; the reason is above" in said
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\nsource: nobody\ncolumns: {loss: {metric: mlm_loss}}\nrows: {trained: {}}\n"
    )
    said = call_paper("run", flags, tmp_path / "others")
    assert "trained: pre-training: 0.00 hours for 1 of them" in said
    assert not (tmp_path / "others" / "runs.json").exists()
    (tmp_path / "others" / "runs.json").write_text('{"a": 1}')
    said = call_paper("run", flags, tmp_path / "others", code=1)
    assert "runs.json does not hold the runs of tables" in said


@pytest.mark.slow
def test_claims_of_losses_probes_and_means_have_intervals_over_seeds_and_rows(
    small_store,
    tmp_path,
    repository,
    call_paper,
):
    columns = ("loss", "probe", "mean")
    shutil.copy(repository / "paper" / "tables" / "profiles.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\nsource: nobody\ncolumns:\n  loss: {metric: mlm_loss}\n"
        "  probe: {task: pairs_next, metric: accuracy, finetune: {freeze_encoder: true}}\n  mean: "
        "{mean_of: [probe]}\n"
        "seeds: 2\npretrain: {per_device_eval_batch_size: 2}\n"
        "rows: {trained: {}, others: {pretrain: {objective: mlm}}}\n"
        "claims:\n"
        + "".join(
            f"- {{better: trained, worse: others, column: {name}, expected: must}}\n"
            for name in columns
        )
    )
    flags = f"--tables {tmp_path}/mine.yaml --profile smoke --store {small_store}"
    flags += f" --data_dir {tmp_path} --output_dir {tmp_path}/runs"
    said = call_paper("run", flags)
    described = json.loads((tmp_path / "runs" / "mine_smoke" / "table.json").read_text())
    assert described["claim_seeds"] == described["seeds"] == [1, 2]

    for claim in described["claims"]:
        ends = claim["intervals"]
        low, high = ends["of_both"]
        assert low <= min(ends["of_rows"][0], ends["of_seeds"][0]) <= claim["difference"]
        assert high >= max(ends["of_rows"][1], ends["of_seeds"][1]) >= claim["difference"]

    # The figures in runs.json are enough: the predictions may be gone.
    for file in (tmp_path / "runs").glob("*/predictions_*"):
        file.unlink()
    assert call_paper("run", flags, "--report_only true") == said[said.index("# Mine") :]
    changed = (tmp_path / "mine.yaml").read_text().replace("seeds: 2", "seeds: 3")
    (tmp_path / "mine.yaml").write_text(changed)
    assert "has verdicts by 2 seeds, and now seeds is 3" in call_paper("run", flags, code=1)


def test_a_stores_pairs_become_a_task_of_texts(small_store, tmp_path, call_paper):
    folder = tmp_path / "task"
    flags = "--num_train 50 --num_validation 8"
    call_paper("pair_task", flags, "--store", small_store, "--output_dir", folder)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert {row["label"] for row in rows} == {"next", "random"}
    assert len(rows) == 50
    assert len((folder / "validation.jsonl").read_text().splitlines()) == 8
    tokenizer = load_tokenizer(small_store / "tokenizer")
    # A document has twelve words of its own: the second text has the same ones where it is the
    # next.
    shares = {"next": [], "random": []}

    for row in rows:
        first, second = ({*tokenizer.encode_ids(row[name])} for name in ("first", "second"))
        shares[row["label"]].append(len(first & second) / len(second))

    means = {label: sum(values) / len(values) for label, values in shares.items()}
    assert means["next"] > means["random"] + 0.3
    assert read_task_file(folder / "task.yaml").labels == ("next", "random")
