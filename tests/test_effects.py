"""What has no effect in a run is said, whoever set it, from one table; what cannot be meant is
refused in one line.
"""

import re
import runpy

import pytest

from bert_recipes.config import field_types, parse_arguments
from bert_recipes.data.prepare import CorpusArguments
from bert_recipes.effects import read_effects
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    ScoringArguments,
    TaskArguments,
    TeachingArguments,
)
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PhaseArguments,
    PreTrainingArguments,
)


PRETRAINING = (
    ModelArguments,
    DataArguments,
    PreTrainingArguments,
    PhaseArguments,
    DistillationArguments,
)
FINETUNING = (TaskArguments, FineTuningArguments, TeachingArguments)


@pytest.fixture
def say(tmp_path, caplog):
    """Parse a command line, and a file of settings; return what is said to be without effect."""

    def parse_and_read(types: tuple[type, ...], flags: str, file: str = "") -> str:
        caplog.clear()
        argv = [*flags.split(), "--output_dir", str(tmp_path / "run")]
        if file:
            path = tmp_path / "settings.yaml"
            path.write_text(file, encoding="utf-8")
            argv += ["--config", str(path)]
        parse_arguments(*types, argv=argv)
        messages = [message for message in caplog.messages if "without effect" in message]
        assert len(messages) <= 1
        return "".join(messages).removeprefix("without effect here: ")

    return parse_and_read


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            "--save_strategy no --save_steps 4",
            "save_steps 4 (only with --save_strategy steps, not no)",
        ),
        (
            "--eval_strategy no --eval_steps 4",
            "eval_steps 4 (only with --eval_strategy steps, not no)",
        ),
        (
            "--muon_learning_rate 0.01",
            "muon_learning_rate 0.01 (only with --optimizer muon, not bert_adam)",
        ),
        (
            "--schedule trainer --schedule_power 2",
            "schedule_power 2 (only with --schedule bert_linear, not trainer)",
        ),
        (
            "--schedule trainer --lr_scheduler_type constant --warmup_steps 5",
            "warmup_steps 5 (only with --schedule bert_linear, not trainer, or only with "
            "--lr_scheduler_type linear or cosine or "
            "cosine_with_restarts or polynomial or constant_with_warmup or inverse_sqrt or "
            "cosine_with_min_lr or "
            "cosine_warmup_with_min_lr or warmup_stable_decay, not constant)",
        ),
        ("--schedule trainer --warmup_steps 5", ""),
        (
            "--lr_scheduler_type cosine",
            "lr_scheduler_type cosine (only with --schedule trainer, not bert_linear)",
        ),
        ("--optim adafactor", "optim adafactor (only with --optimizer trainer, not bert_adam)"),
        (
            "--objective ltr --whole_word",
            "whole_word true (only with --selection count or bernoulli or fairseq, not causal)",
        ),
        ("--alpha_ce 3", "alpha_ce 3 (only with --objective distilbert, not bert)"),
        (
            "--phase2_learning_rate 1e-4 --phase2_warmup_steps 10",
            "phase2_learning_rate 0.0001, phase2_warmup_steps 10",
        ),
        (
            "--schedule trainer --phase2_steps 9 --phase2_learning_rate 1 --phase2_warmup_steps 1",
            "phase2_learning_rate 1, phase2_warmup_steps 1 (only with --schedule bert_linear",
        ),
        ("--phase2_max_seq_length 256", "phase2_max_seq_length 256 (only with --phase2_steps)"),
        ("--hub_model_id me/x", "hub_model_id me/x (only with --push_to_hub true, not false)"),
        ("--run_name mine", "run_name mine (only with --report_to)"),
        (
            "--model_name_or_path x --size base --dropout 0.1",
            "size base, dropout 0.1 (only with starting point new model",
        ),
        ("--do_predict true", "do_predict true (only with run kind fine-tuning, not pre-training)"),
        (
            "--data_seed 7 --label_smoothing_factor 0.1",
            "label_smoothing_factor 0.1 (nothing here reads it); data_seed 7",
        ),
        (
            "--input_format full_sentences --pair_label none --short_seq_prob 0.2",
            "short_seq_prob 0.2 (only with --input",
        ),
        (
            "--num_train_epochs 2 --max_steps 10",
            "num_train_epochs 2 (only with --max_steps -1, not 10)",
        ),
        ("--ddp_bucket_cap_mb 50", "ddp_bucket_cap_mb 50 (only with several processes)"),
    ],
)
def test_a_typed_flag_of_pretraining_without_effect_is_said_with_what_it_needs(say, flags, said):
    assert say(PRETRAINING, f"--store x {flags}").startswith(said)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            "--task mrpc --n_best_size 5 --doc_stride 64",
            "doc_stride 64 (only with task kind question_answering, not",
        ),
        (
            "--task mrpc --label_all_pieces true",
            "label_all_pieces true (only with task kind token_classification, not",
        ),
        (
            "--task squad --context document",
            "context document (only with task kind token_classification or multiple_ch",
        ),
        (
            "--task conll2003 --long_documents head",
            "long_documents head (only with task kind sequence_classification",
        ),
        (
            "--task mrpc --max_predict_examples 5",
            "max_predict_examples 5 (only with --do_predict true, not false",
        ),
        ("--task mrpc --temperature 2", "temperature 2 (only with --distil prediction, not null)"),
        (
            "--task mrpc --teacher x --distil prediction --alpha_attn 2",
            "alpha_attn 2 (only with --distil intermediate, not prediction)",
        ),
        ("--task mrpc --do_train true", "do_train true (nothing here reads it)"),
        (
            "--task mrpc --batch_eval_metrics true",
            "batch_eval_metrics true (nothing here reads it)",
        ),
        ("--task mrpc --save_steps 4", "save_steps 4 (only with --save_strategy steps, not epoch)"),
    ],
)
def test_a_typed_flag_of_finetuning_without_effect_is_said_with_what_it_needs(say, flags, said):
    assert say(FINETUNING, flags).startswith(said)


def test_a_setting_of_a_file_is_said_too_but_not_where_it_repeats_a_default(say):
    file = (
        "muon_learning_rate: 0.01\nsave_steps: 7\nsave_strategy: 'no'\nphase2_max_seq_length: 512\n"
    )
    assert say(PRETRAINING, "--store x", file) == (
        "save_steps 7 (only with --save_strategy steps, not no); "
        "muon_learning_rate 0.01 (only with --optimizer muon, not bert_adam)"
    )
    assert say(PRETRAINING, "--store x --optimizer muon --save_strategy steps", file) == ""


def test_instance_files_have_their_own_pairs_and_masks(say):
    said = say(
        PRETRAINING,
        "--train_file a --tokenizer b --whole_word true --mlm_probability 0.2 --dupe_factor 2",
    )
    assert said == "mlm_probability 0.2, whole_word true, dupe_factor 2 (only without --train_file)"


def test_a_data_set_of_the_hub_is_one_shard(say):
    flags = "--tokenizer x --shard_gigabytes 0.5"
    said = say((CorpusArguments,), f"{flags} --dataset_name owner/name")
    assert said.startswith("shard_gigabytes 0.5 (only without --dataset_name")
    assert say((CorpusArguments,), f"{flags} --files a") == ""


@pytest.mark.parametrize(
    ("types", "flags"),
    [
        (
            PRETRAINING,
            "--store x --save_strategy steps --save_steps 4 --optimizer muon --muon_learning_rate "
            "0.01",
        ),
        (PRETRAINING, "--store x --logging_strategy no --eval_strategy steps --logging_steps 5"),
        (PRETRAINING, "--store x --objective distilbert --teacher y --alpha_ce 3 --temperature 2"),
        (PRETRAINING, "--store x --objective tinybert --teacher y --alpha_attn 3 --size 4/312"),
        (PRETRAINING, "--store x --phase2_steps 0.1 --phase2_max_seq_length 256"),
        (
            PRETRAINING,
            "--store x --schedule trainer --lr_scheduler_type cosine --optimizer trainer --optim "
            "adafactor",
        ),
        (PRETRAINING, "--store x --size base --dropout 0.2 --hidden_act gelu"),
        (
            FINETUNING,
            "--task mrpc --dropout 0.2 --model_name_or_path x --max_seq_length 64 --data_seed 3",
        ),
        (FINETUNING, "--task mrpc --long_documents windows --doc_stride 32"),
        (FINETUNING, "--task squad --doc_stride 64 --n_best_size 5 --decoder offsets"),
        (FINETUNING, "--task mrpc --do_predict true --max_predict_examples 5"),
    ],
)
def test_settings_with_an_effect_are_no_news(say, types, flags):
    assert say(types, flags) == ""


def test_no_recipe_sets_what_has_no_effect(say, repository):
    extra = {
        "instances": "--train_file a --tokenizer b",
        "glue": "--task mrpc",
        "roberta_glue": "--task mrpc",
        "tinybert_intermediate": "--task mrpc --teacher x",
        "tinybert_prediction": "--task mrpc --teacher x",
    }
    for folder, types in (("pretrain", PRETRAINING), ("finetune", FINETUNING)):
        for path in sorted((repository / "recipes" / "configs" / folder).glob("*.yaml")):
            assert say(types, f"--config {path} {extra.get(path.stem, '')}") == "", path.name


def test_measuring_a_checkpoint_names_the_settings_of_training(say, repository, monkeypatch):
    monkeypatch.setattr(ScoringArguments, "__post_init__", lambda self: None)
    evaluate = runpy.run_path(str(repository / "recipes" / "evaluate_checkpoint.py"))[
        "EvaluateArguments"
    ]
    said = say(
        (evaluate, ScoringArguments, FineTuningArguments), "--task mrpc --learning_rate 1e-3"
    )
    assert said == "learning_rate 0.001 (only with training)"


def test_every_name_of_the_table_is_one_of_a_settings_class(repository):
    names = set(field_types(PreTrainingArguments))
    for folder in ("src", "recipes", "tokenizer"):
        for path in (repository / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            names.update(re.findall(r"^    (?:def )?(\w+)[:(]", text, re.MULTILINE))
    for settings, conditions in read_effects():
        assert names.issuperset([*settings, *conditions])
        for demand in conditions.values():
            assert isinstance(demand, list) or demand in ("set", "unset")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--logging_steps", "nan"], "--logging_steps: expected a number, got 'nan'"),
        (
            ["--logging_steps", "-5"],
            "logging_steps is -5.0; allowed: above 0; --logging_strategy no logs nothing",
        ),
        (
            ["--save_steps", "-1"],
            "save_steps is -1.0; allowed: above 0; --save_strategy no keeps no checkpoint",
        ),
        (["--eval_steps", "0"], "eval_steps is 0.0; allowed: above 0"),
        (
            ["--save_total_limit", "-2"],
            "save_total_limit is -2; allowed: 1 or more; null keeps all of them",
        ),
        (["--seed", "-3"], "seed is -3; allowed: 0 to 4,294,967,295"),
        (["--max_eval_pairs", "-1"], "max_eval_pairs is -1; allowed: 1 or more"),
        (["--eval_delay", "-1"], "eval_delay is -1.0; allowed: 0 or more"),
        (["--ddp_timeout", "0"], "ddp_timeout is 0; allowed: 1 or more"),
        (["--phase2_max_seq_length", "-8"], "phase2_max_seq_length is -8; allowed: 8 or more"),
        (
            ["--run_name", ""],
            "--run_name: the value is empty; leave it out, or write null for none",
        ),
        (["--store", " "], "--store: the value is empty"),
        (
            ["--max_steps", "10", "--seed", "1", "--max-steps", "20"],
            "--max_steps is given twice on the command line",
        ),
        (["--whole_word", "--whole_word=false"], "--whole_word is given twice on the command line"),
        (
            ["--dataloader_pin_memory", "true", "--no_dataloader_pin_memory"],
            "--dataloader_pin_memory is given twice",
        ),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_in_one_line(tmp_path, flags, message):
    store = [] if "--store" in flags else ["--store", "x"]
    with pytest.raises(InputError) as caught:
        parse_arguments(*PRETRAINING, argv=["--output_dir", str(tmp_path / "run"), *store, *flags])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('run_name: ""', "line 2: run_name: the value is empty"),
        ("learning_rate: .nan", "line 2: learning_rate: expected a number, got '.nan'"),
        ("hub_tags: [a, '']", "line 2: hub_tags: the value is empty"),
    ],
)
def test_a_file_may_not_say_them_either(tmp_path, line, message):
    path = tmp_path / "settings.yaml"
    path.write_text(f"store: x\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"settings\.yaml") as caught:
        parse_arguments(*PRETRAINING, argv=["--config", str(path)])
    assert message in str(caught.value)
