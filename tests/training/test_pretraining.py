"""A run is put together from parts that fit; what does not fit, or has no effect, is said by
name.
"""

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_recipes.data.instances import Instance, write_instances
from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.settings import check
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS
from bert_recipes.training import pretraining
from bert_recipes.training.arguments import DataArguments, ModelArguments
from bert_recipes.training.pretraining import (
    QUICKSTART,
    QUICKSTART_STEPS,
    build_missing_quickstart,
    load_data,
    load_model,
    make_collator,
)
from bert_recipes.yaml_files import read_tree


NUM_PIECES = 117
QUICKSTART_STORE = QUICKSTART / "store"
ONE_PROCESS = SimpleNamespace(process_index=0, world_size=1)


def make_vocabulary(folder, name="vocab.txt", words="abcdefgh"):
    file = folder / name
    pieces = [f"{words[number % 8]}{number}" for number in range(NUM_PIECES - len(SPECIAL_TOKENS))]
    file.write_text("\n".join([*SPECIAL_TOKENS, *pieces]) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(make_vocabulary(tmp_path), do_lower_case=True)


def make_checkpoint(folder, vocab_size=NUM_PIECES, tokenizer=None):
    BertForPreTraining(pretraining_config("tiny", vocab_size=vocab_size)).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


def open_model(folder, tokenizer, **settings):
    return load_model(ModelArguments(model_name_or_path=str(folder), **settings), tokenizer, 128, 1)


def edit_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("is_bare", [True, False])
def test_another_tokenizer_of_the_same_size_is_refused(tmp_path, tokenizer, is_bare):
    other = make_vocabulary(tmp_path, "2.txt", "stuvwxyz")
    folder = make_checkpoint(
        tmp_path / "model", tokenizer=None if is_bare else load_tokenizer(other)
    )
    if is_bare:
        shutil.copy(other, folder / "vocab.txt")
    with pytest.raises(
        InputError, match=r"another tokenizer than the data .* both belong together"
    ):
        open_model(folder, tokenizer)
    if is_bare:
        shutil.copy(tmp_path / "vocab.txt", folder / "vocab.txt")
    else:
        tokenizer.save_pretrained(folder)
    assert open_model(folder, tokenizer).config.vocab_size == NUM_PIECES


def test_without_tokenizer_files_a_smaller_vocabulary_is_refused(tmp_path, tokenizer):
    folder = make_checkpoint(tmp_path / "model", vocab_size=NUM_PIECES - 1)
    with pytest.raises(
        InputError, match=f"vocabulary of {NUM_PIECES - 1}, the tokenizer 117 pieces"
    ):
        open_model(folder, tokenizer)


@pytest.mark.parametrize("vocab_size", [NUM_PIECES + 1, 192])
def test_without_tokenizer_files_a_larger_vocabulary_is_kept_and_said(
    tmp_path, tokenizer, caplog, vocab_size
):
    network = open_model(make_checkpoint(tmp_path / "model", vocab_size=vocab_size), tokenizer)
    assert network.config.vocab_size == vocab_size
    assert "the other rows are kept" in caplog.text


@pytest.mark.parametrize("vocab_size", [120, 128])
def test_a_vocabulary_padded_to_a_round_number_is_taken_with_a_warning(
    tmp_path, tokenizer, caplog, vocab_size
):
    open_model(make_checkpoint(tmp_path / "model", vocab_size=vocab_size), tokenizer)
    assert [record.message for record in caplog.records if "taken for padding" in record.message]


def test_another_kind_of_model_is_refused(tmp_path, tokenizer):
    folder = make_checkpoint(tmp_path / "model")
    edit_config(folder, model_type="roberta")
    with pytest.raises(
        InputError, match=r"no BERT: the model_type in its config.json is 'roberta'"
    ):
        open_model(folder, tokenizer)


def test_only_the_heads_may_start_anew(tmp_path, tokenizer, caplog):
    folder = tmp_path / "model"
    transformers.BertModel(pretraining_config("tiny", vocab_size=NUM_PIECES)).save_pretrained(
        folder
    )
    open_model(folder, tokenizer)
    assert [
        record.message
        for record in caplog.records
        if "cls.seq_relationship.weight" in record.message
    ]
    edit_config(folder, num_hidden_layers=3)
    with pytest.raises(InputError, match=r"no weights for bert\.encoder\.layer\.2\..* and 15 more"):
        open_model(folder, tokenizer)


def test_random_heads_are_trained_but_not_measured_and_a_masked_lm_head_is_enough(
    tmp_path, tokenizer
):
    for kind in ("SequenceClassification", "MaskedLM"):
        model = getattr(transformers, f"BertFor{kind}")(
            pretraining_config("tiny", vocab_size=NUM_PIECES)
        )
        model.save_pretrained(tmp_path / kind)
    settings = ModelArguments(model_name_or_path=str(tmp_path / "SequenceClassification"))
    load_model(settings, tokenizer, 128, 1)
    with pytest.raises(
        InputError, match=r"BertForSequenceClassification, without a masked-LM head.*--task NAME"
    ):
        load_model(settings, tokenizer, 128, 1, needs_head=True)
    load_model(
        ModelArguments(model_name_or_path=str(tmp_path / "MaskedLM")),
        tokenizer,
        128,
        1,
        needs_head=True,
    )


def cut_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def leave_a_pointer(folder):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (folder / "model.safetensors").write_text(pointer)


def narrow_embeddings(folder):
    weights = load_file(folder / "model.safetensors")
    weights["bert.pooler.dense.bias"] = torch.zeros(7)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            "neither model.safetensors nor pytorch_model.bin",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: broken JSON"),
        (
            lambda folder: (folder / "config.json").write_text("[]"),
            "config.json: a JSON object is wanted, not a list",
        ),
        (lambda folder: edit_config(folder, hidden_act="foo"), "cannot be opened: KeyError: 'foo'"),
        (
            lambda folder: edit_config(folder, hidden_size=129),
            "not a multiple of the number of attention heads",
        ),
        (lambda folder: edit_config(folder, hidden_size="wide"), "expected int, got str"),
        (lambda folder: edit_config(folder, vocab_size=-3), "negative dimension"),
        (lambda folder: edit_config(folder, weight_init="zeros"), "weight_init is 'zeros'"),
        (cut_weights, "cannot be opened: SafetensorError"),
        (leave_a_pointer, "a pointer of Git LFS, not the file itself"),
        (narrow_embeddings, "bert.pooler.dense.bias not of the size"),
    ],
)
def test_a_broken_checkpoint_is_one_line(tmp_path, tokenizer, damage, message):
    folder = make_checkpoint(tmp_path / "model")
    damage(folder)
    with pytest.raises(InputError) as caught:
        open_model(folder, tokenizer)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value) or message.startswith("weight_init")
    assert "\n" not in str(caught.value)


def test_every_masking_setting_reaches_the_collator_and_the_defaults_are_the_papers(tokenizer):
    """Devlin et al. 2019, section 3.1, Task #1; 20 predictions for 128 tokens: google-research/bert
    README.
    """
    rule = {
        "mask_rate": 0.5,
        "keep_rate": 0.2,
        "random_rate": 0.3,
        "whole_word": True,
        "selection": "bernoulli",
    }
    rule |= {"mlm_probability": 0.2, "max_predictions_per_seq": 9}
    collator = make_collator(DataArguments(store="store", **rule), tokenizer, 3)
    assert {name: getattr(collator, name) for name in rule} == rule
    assert collator.seed == 3
    rates = {"mlm_probability": 0.15, "mask_rate": 0.8, "keep_rate": 0.1, "random_rate": 0.1}
    rates |= {"max_predictions_per_seq": 20, "whole_word": False, "selection": "count"}
    default = make_collator(DataArguments(store="store"), tokenizer, 3)
    assert {name: getattr(default, name) for name in rates} == rates


def test_a_validation_file_beside_a_store_is_refused(small_store):
    with pytest.raises(InputError, match="validation_file belongs to --train_file"):
        load_data(DataArguments(store=str(small_store), validation_file=["x.jsonl"]), 1)


def make_instances(file, *, number=4, max_seq_length=16):
    # Position 2 was token 7 before it was masked, position 4 was token 9 before it became 11.
    instance = Instance([2, 6, 4, 3, 11, 3], 4, [2, 4], [7, 9], False)
    write_instances(
        [instance] * number, [file], max_seq_length=max_seq_length, max_predictions_per_seq=3
    )
    return str(file)


def instance_arguments(tmp_path, **settings):
    files = {
        "train_file": [make_instances(tmp_path / "train.jsonl")],
        "tokenizer": str(tmp_path / "vocab.txt"),
    }
    return DataArguments(**files, **settings)


def test_tokens_of_instances_are_counted_as_they_were_before_masking_in_a_sample_of_many(
    tmp_path, tokenizer, caplog, monkeypatch
):
    counts = load_data(instance_arguments(tmp_path), 1).unigram_counts
    expected = np.zeros(NUM_PIECES, dtype=np.int64)
    expected[[2, 6, 7, 9]], expected[3] = 4, 8
    assert counts.tolist() == expected.tolist()
    monkeypatch.setattr(pretraining, "MAX_COUNTED_INSTANCES", 3)
    with caplog.at_level(logging.INFO):
        counts = load_data(instance_arguments(tmp_path), 1).unigram_counts
    assert counts.sum() == 3 * 6
    assert "counted in 3 of 4 instances" in caplog.text


def test_instance_files_are_told_from_each_other_by_what_they_hold(tmp_path, tokenizer):
    """Not by their number of instances, and not by their place."""
    arguments = instance_arguments(tmp_path)
    first = load_data(arguments, 1).identity
    arguments.train_file = [shutil.move(tmp_path / "train.jsonl", tmp_path / "moved.jsonl")]
    assert load_data(arguments, 1).identity == first
    other = Instance([2, 6, 4, 3, 11, 3], 4, [2, 4], [7, 8], False)
    write_instances([other] * 4, arguments.train_file, max_seq_length=16, max_predictions_per_seq=3)
    assert load_data(arguments, 1).identity != first


def test_the_held_out_instances_must_fit_the_model_too(tmp_path, tokenizer):
    longer = make_instances(tmp_path / "held_out.jsonl", max_seq_length=40)
    data = load_data(instance_arguments(tmp_path, validation_file=[longer]), 1)
    assert (data.train.max_seq_length, data.max_seq_length) == (16, 40)
    with pytest.raises(InputError, match="max_seq_length is 40, the model has 32 positions"):
        load_model(ModelArguments(max_position_embeddings=32), tokenizer, data.max_seq_length, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropout": 1.0}, "dropout is 1.0; allowed: 0 or more and below 1"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"hidden_act": "gelu_nwe"}, "transformers knows .*gelu_new"),
        ({"max_position_embeddings": 7}, "max_position_embeddings is 7; allowed: 8 or more"),
    ],
)
def test_values_of_a_new_model_out_of_range_are_refused(tokenizer, settings, message):
    def load() -> None:
        check(ModelArguments(**settings))
        load_model(ModelArguments(**settings), tokenizer, 8, 1)

    with pytest.raises(InputError, match=message):
        load()


# The quickstart's data: made where it is missing, by the scripts, from the first part that is
# missing on


@pytest.fixture
def repository_of_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scripts of the same names that note that they were called, and leave what the real ones
    leave.
    """
    for made, script, _ in QUICKSTART_STEPS:
        file = tmp_path / "repository" / script
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = ["import pathlib", "print(*__import__('sys').argv[1:], file=open('calls', 'a'))"]
        lines += [
            f"path = pathlib.Path('{QUICKSTART / made}')",
            "path.parent.mkdir(parents=True, exist_ok=True)",
        ]
        file.write_text("\n".join([*lines, "path.touch()"]))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "repository"


def test_every_part_is_made_once_and_again_what_comes_after_a_missing_one(
    repository_of_notes: Path,
):
    for store in (None, "my_store"):
        build_missing_quickstart(ONE_PROCESS, store, repository_of_notes)
    assert not Path("calls").exists()
    build_missing_quickstart(ONE_PROCESS, str(QUICKSTART_STORE), repository_of_notes)
    configs = [f"--config {repository_of_notes / file}" for *_, file in QUICKSTART_STEPS[1:]]
    assert Path("calls").read_text().splitlines() == ["", *configs]
    build_missing_quickstart(ONE_PROCESS, str(QUICKSTART_STORE), repository_of_notes)
    assert len(Path("calls").read_text().splitlines()) == 3
    (QUICKSTART / "tokenizer" / "vocab.txt").unlink()
    (QUICKSTART_STORE / "store.json").unlink()
    build_missing_quickstart(ONE_PROCESS, "data/quickstart/store/", repository_of_notes)
    assert len(Path("calls").read_text().splitlines()) == 5


def test_a_script_that_fails_ends_the_run_in_one_line(repository_of_notes: Path):
    (repository_of_notes / "tokenizer" / "train.py").write_text("raise SystemExit(3)")
    with pytest.raises(
        InputError,
        match=r"vocab\.txt could not be created: tokenizer/train\.py ended with exit code 3",
    ):
        build_missing_quickstart(ONE_PROCESS, str(QUICKSTART_STORE), repository_of_notes)


def test_configurations_and_scripts_name_the_same_files(repository: Path):
    assert all((repository / script).is_file() for _, script, _ in QUICKSTART_STEPS)
    tokenizer, store = (read_tree(repository / file)[0] for *_, file in QUICKSTART_STEPS[1:])
    train = read_tree(repository / "recipes/configs/pretrain/quickstart.yaml")[0]
    assert (tokenizer["output_dir"], store["output_dir"]) == (
        str(QUICKSTART / "tokenizer"),
        str(QUICKSTART_STORE),
    )
    assert train["store"] == str(QUICKSTART_STORE)
