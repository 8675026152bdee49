"""Runs as processes of their own."""

import json
import sys

from bert_recipes.sweeps.subruns import FineTuning


PROGRAM = """
import json, os, sys
folder = sys.argv[sys.argv.index("--output_dir") + 1]
os.makedirs(folder)
json.dump({"group": os.environ["WANDB_RUN_GROUP"]}, open(folder + "/all_results.json", "w"))
open(folder + "/task.yaml", "w").close()
"""


def test_wandb_shows_the_runs_of_a_sweep_as_one_group_unless_the_user_names_one(tmp_path, monkeypatch):
    runs = FineTuning((sys.executable, "-c", PROGRAM), ("--report_to", "wandb"))
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    assert runs.run(tmp_path / "mrpc_paper" / "lr2e-05" / "seed-1", []) == {"group": "mrpc_paper"}
    monkeypatch.setenv("WANDB_RUN_GROUP", "mine")
    assert runs.run(tmp_path / "mrpc_paper" / "lr2e-05" / "seed-2", []) == {"group": "mine"}
    kept = json.loads((tmp_path / "mrpc_paper" / "lr2e-05" / "seed-1" / "all_results.json").read_text())
    assert kept == {"group": "mrpc_paper"}
