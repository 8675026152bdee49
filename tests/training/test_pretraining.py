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
from bert_recipes.data.neighbors import piece_vectors
from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS
from bert_recipes.training import pretraining
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
)
from bert_recipes.training.pretraining import (
    QUICKSTART_DATA,
    QUICKSTART_STEPS,
    build_missing_quickstart,
    build_model,
    load_data,
    load_model,
    load_teacher,
    make_collator,
)
from bert_recipes.yaml_files import read_tree


NUM_PIECES = 117
QUICKSTART_STORE = QUICKSTART_DATA / "store"
ONE_PROCESS = SimpleNamespace(process_index=0, world_size=1)


def make_vocabulary(folder, name="vocab.txt", words="abcdefgh"):
    file = folder / name
    pieces = [f"{words[number % 8]}{number}" for number in range(NUM_PIECES - len(SPECIAL_TOKENS))]
    file.write_text("\n".join([*SPECIAL_TOKENS, *pieces]) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(make_vocabulary(tmp_path), do_lower_case=True)


def make_checkpoint(folder, vocab_size=NUM_PIECES):
    BertForPreTraining(pretraining_config("2/32", vocab_size=vocab_size)).save_pretrained(folder)
    return folder


def open_model(folder, tokenizer):
    return load_model(ModelArguments(model_name_or_path=str(folder)), tokenizer, 128, 1)


def edit_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("is_bare", [True, False])
def test_another_tokenizer_of_the_same_size_is_refused(tmp_path, tokenizer, is_bare):
    folder = make_checkpoint(tmp_path / "model")
    vocabulary = make_vocabulary(tmp_path, "2.txt", "stuvwxyz")
    if is_bare:
        shutil.copy(vocabulary, folder / "vocab.txt")
    else:
        load_tokenizer(vocabulary).save_pretrained(folder)
    with pytest.raises(InputError, match=r"another tokenizer than the data .* belong together"):
        open_model(folder, tokenizer)
    tokenizer.save_pretrained(folder)
    assert open_model(folder, tokenizer).config.vocab_size == NUM_PIECES


def test_without_tokenizer_files_a_smaller_vocabulary_is_refused(tmp_path, tokenizer):
    folder = make_checkpoint(tmp_path / "model", vocab_size=NUM_PIECES - 1)
    with pytest.raises(InputError, match="vocabulary of 116, the tokenizer 117 pieces"):
        open_model(folder, tokenizer)


@pytest.mark.parametrize(
    ("vocab_size", "words"),
    [(NUM_PIECES + 1, "the other rows are kept"), (128, "taken for padding")],
)
def test_without_tokenizer_files_a_larger_vocabulary_is_kept_and_said(
    tmp_path, tokenizer, caplog, vocab_size, words
):
    model = open_model(make_checkpoint(tmp_path / "model", vocab_size=vocab_size), tokenizer)
    assert model.config.vocab_size == vocab_size
    assert words in caplog.text


def test_only_the_heads_may_start_anew(tmp_path, tokenizer, caplog):
    folder = tmp_path / "model"
    config = pretraining_config("2/32", vocab_size=NUM_PIECES)
    transformers.BertModel(config).save_pretrained(folder)
    open_model(folder, tokenizer)
    assert "cls.seq_relationship.weight" in caplog.text
    edit_config(folder, num_hidden_layers=3)
    with pytest.raises(InputError, match=r"no weights for bert\.encoder\.layer\.2\..* and 15 more"):
        open_model(folder, tokenizer)


def test_random_heads_are_trained_but_not_measured_and_a_masked_lm_head_is_enough(
    tmp_path, tokenizer
):
    def load(model_class, **settings):
        config = pretraining_config("2/32", vocab_size=NUM_PIECES)
        model_class(config).save_pretrained(tmp_path / model_class.__name__)
        args = ModelArguments(model_name_or_path=str(tmp_path / model_class.__name__))
        load_model(args, tokenizer, 128, 1, **settings)

    load(transformers.BertForMaskedLM, needs_head=True)
    load(transformers.BertForSequenceClassification)
    with pytest.raises(InputError, match=r"without a masked-LM head.*--task NAME"):
        load(transformers.BertForSequenceClassification, needs_head=True)


@pytest.mark.parametrize("name", ["Bert", "Albert"])
def test_a_random_head_for_pairs_is_not_measured(tmp_path, tokenizer, caplog, name):
    def measure(model_class):
        model_type = model_class.config_class.model_type
        config = pretraining_config("2/32", vocab_size=NUM_PIECES, model_type=model_type)
        model_class(config).save_pretrained(tmp_path / "model")
        args = ModelArguments(model_name_or_path=str(tmp_path / "model"))
        model = load_model(args, tokenizer, 128, 1, needs_head=True).eval()
        ids = torch.tensor([[2, 7, 3, 8, 3]])
        return model(ids, labels=ids, next_sentence_label=torch.tensor([1]))

    assert measure(getattr(transformers, f"{name}ForPreTraining")).nsp_loss is not None
    assert "they are left out" not in caplog.text
    output = measure(getattr(transformers, f"{name}ForMaskedLM"))
    assert output.nsp_loss is None
    assert output.loss == output.mlm_loss
    assert "they are left out" in caplog.text


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


def edit(**values):
    return lambda folder: edit_config(folder, **values)


def write_config(text):
    return lambda folder: (folder / "config.json").write_text(text)


def remove(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("config.json"), "no config.json"),
        (remove("model.safetensors"), "neither model.safetensors nor pytorch_model.bin"),
        (write_config("{"), "config.json: broken JSON"),
        (write_config("[]"), "config.json: a JSON object is wanted, not a list"),
        (edit(model_type="roberta"), "no BERT: the model_type in its config.json is 'roberta'"),
        (edit(hidden_act="foo"), "cannot be opened: KeyError: 'foo'"),
        (edit(hidden_size="wide"), "expected int, got str"),
        (edit(vocab_size=-3), "negative dimension"),
        (edit(weight_init="zeros"), "weight_init is 'zeros'"),
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
        "mlm_probability": 0.2,
        "max_predictions_per_seq": 9,
    }
    collator = make_collator(DataArguments(store="store", **rule), tokenizer, 3)
    assert vars(collator).items() >= (rule | {"seed": 3}).items()
    defaults = {
        "mask_rate": 0.8,
        "keep_rate": 0.1,
        "random_rate": 0.1,
        "whole_word": False,
        "selection": "count",
        "mlm_probability": 0.15,
        "max_predictions_per_seq": 20,
    }
    collator = make_collator(DataArguments(store="store"), tokenizer, 3)
    assert vars(collator).items() >= defaults.items()


def test_a_fraction_that_changes_has_room_for_its_highest(tokenizer, caplog):
    rates = {"mlm_probability": 0.15, "mlm_probability_end": 0.3}
    collator = make_collator(DataArguments(store="store", **rates), tokenizer, 3)
    assert collator.max_predictions_per_seq == 39  # ceil(0.3 * 128)
    assert not caplog.text
    settings = DataArguments(store="store", max_predictions_per_seq=20, **rates)
    assert make_collator(settings, tokenizer, 3).max_predictions_per_seq == 20
    message = "is 20: no more are predicted, though mlm_probability 0.3 of 128 tokens is 38"
    assert message in caplog.text
    caplog.clear()
    settings = DataArguments(store="store", max_predictions_per_seq=20, mlm_probability=0.4)
    make_collator(settings, tokenizer, 3)
    assert "mlm_probability 0.4 of 128 tokens is 51; raise it" in caplog.text


@pytest.mark.parametrize("selection", ["spans", "fairseq", "causal"])
def test_the_fraction_of_some_selections_stays(tokenizer, selection):
    settings = DataArguments(store="store", mlm_probability_end=0.1, selection=selection)
    with pytest.raises(InputError, match=f"selection {selection}; allowed with count, bernoulli"):
        make_collator(settings, tokenizer, 3)


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
    monkeypatch.setattr(pretraining, "MAX_COUNTED_INPUTS", 3)
    with caplog.at_level(logging.INFO):
        counts = load_data(instance_arguments(tmp_path), 1).unigram_counts
    assert counts.sum() == 3 * 6
    assert "counted in 3 of 4 inputs" in caplog.text


@pytest.mark.parametrize(("selection", "has_first"), [("fairseq", True), ("causal", False)])
def test_special_tokens_are_counted_where_they_are_predicted(small_store, selection, has_first):
    """The baseline of word frequencies would otherwise give them nearly no probability."""
    settings = {"store": str(small_store), "max_seq_length": 32, "pair_label": "none"}
    data = load_data(DataArguments(**settings, selection=selection), 1)
    tokenizer = data.tokenizer
    num_pairs = len(data.train)
    assert data.unigram_counts[tokenizer.sep_token_id] == 2 * num_pairs
    assert data.unigram_counts[tokenizer.cls_token_id] == (num_pairs if has_first else 0)
    text_counts = load_data(DataArguments(**settings), 1).unigram_counts
    assert text_counts[tokenizer.sep_token_id] == 0


def test_instance_files_are_told_from_each_other_by_what_they_hold(tmp_path, tokenizer):
    """Not by their number of instances, and not by their place."""
    arguments = instance_arguments(tmp_path)
    first = load_data(arguments, 1).resume_fingerprint
    arguments.train_file = [shutil.move(tmp_path / "train.jsonl", tmp_path / "moved.jsonl")]
    assert load_data(arguments, 1).resume_fingerprint == first
    instance = Instance([2, 6, 4, 3, 11, 3], 4, [2, 4], [7, 8], False)
    write_instances(
        [instance] * 4, arguments.train_file, max_seq_length=16, max_predictions_per_seq=3
    )
    assert load_data(arguments, 1).resume_fingerprint != first


def test_the_held_out_instances_must_fit_the_model_too(tmp_path, tokenizer):
    longer = make_instances(tmp_path / "held_out.jsonl", max_seq_length=40)
    data = load_data(instance_arguments(tmp_path, validation_file=[longer]), 1)
    assert (data.train.max_seq_length, data.max_seq_length) == (16, 40)
    with pytest.raises(InputError, match="max_seq_length is 40, the model has 32 positions"):
        load_model(ModelArguments(max_position_embeddings=32), tokenizer, data.max_seq_length, 1)
    config = pretraining_config("2/64", vocab_size=len(tokenizer), max_position_embeddings=32)
    teacher = BertForPreTraining(config)
    distillation = DistillationArguments(
        teacher="x", temperature=2.0, alpha_ce=5.0, alpha_mlm=2.0, alpha_cos=1.0
    )
    with pytest.raises(InputError, match="max_seq_length is 40, the model has 32 positions"):
        build_model(ModelArguments(objective="distilbert"), distillation, data, teacher, 1)


def test_values_of_a_new_model_out_of_range_are_refused(tokenizer):
    with pytest.raises(InputError, match=r"dropout is 1\.0; allowed: 0 or more and below 1"):
        ModelArguments(dropout=1.0)
    with pytest.raises(InputError, match="max_position_embeddings is 7; allowed: 8 or more"):
        ModelArguments(max_position_embeddings=7)
    with pytest.raises(InputError, match=r"transformers knows .*gelu_new"):
        load_model(ModelArguments(hidden_act="gelu_nwe"), tokenizer, 8, 1)


# The quickstart's data: made where it is missing, by the scripts, from the first part that is
# missing on

NOTING_SCRIPT = """
import pathlib, sys
print(*sys.argv[1:], file=open("calls", "a"))
path = pathlib.Path("{}")
path.parent.mkdir(parents=True, exist_ok=True)
path.touch()
"""


@pytest.fixture
def repository_of_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scripts of the same names that note that they were called, and leave what the real ones
    leave.
    """
    for result, script, _ in QUICKSTART_STEPS:
        file = tmp_path / "repository" / script
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(NOTING_SCRIPT.format(QUICKSTART_DATA / result))
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
    (QUICKSTART_DATA / "tokenizer" / "vocab.txt").unlink()
    (QUICKSTART_STORE / "store.json").unlink()
    build_missing_quickstart(ONE_PROCESS, "data/quickstart/store/", repository_of_notes)
    assert len(Path("calls").read_text().splitlines()) == 5


def test_a_script_that_fails_ends_the_run_in_one_line(repository_of_notes: Path):
    (repository_of_notes / "tokenizer" / "train.py").write_text("raise SystemExit(3)")
    words = r"vocab\.txt could not be created: tokenizer/train\.py ended with exit code 3"
    with pytest.raises(InputError, match=words):
        build_missing_quickstart(ONE_PROCESS, str(QUICKSTART_STORE), repository_of_notes)


def test_configurations_and_scripts_name_the_same_files(repository: Path):
    for result, script, config in QUICKSTART_STEPS:
        assert (repository / script).is_file()
        if config is not None:
            values, _ = read_tree(repository / config)
            assert Path(values["output_dir"]) == (QUICKSTART_DATA / result).parent
    values, _ = read_tree(repository / "recipes/configs/pretrain/quickstart.yaml")
    assert values["store"] == str(QUICKSTART_STORE)


# Word embeddings of a new model


def build_new(data, **settings):
    model_args = ModelArguments(**settings)
    return build_model(model_args, DistillationArguments(), data, None, 1)


@pytest.mark.parametrize("objective", ["bert", "mlm"])
def test_a_label_of_pairs_that_no_head_learns_is_said(small_store, caplog, objective):
    data_args = DataArguments(store=str(small_store), max_seq_length=32, pair_label="order")
    build_new(load_data(data_args, 1), objective=objective)
    message = "pair_label order is not learned: BertForMaskedLM has no head for pairs"
    assert (message in caplog.text) == (objective == "mlm")


# Left to right


def load_text(store, selection):
    inputs = {"max_seq_length": 32, "pair_label": "none"}
    return load_data(DataArguments(store=str(store), selection=selection, **inputs), 1)


SEES_NEXT = "the model reads both ways and would see the next token"
SEES_BEFORE = "the model reads from left to right and predicts the next token alone"


@pytest.mark.parametrize(
    ("objective", "selection", "message"),
    [("mlm", "causal", SEES_NEXT), ("electra", "causal", SEES_NEXT), ("ltr", "count", SEES_BEFORE)],
)
def test_the_next_token_is_for_models_that_do_not_see_it(
    small_store, objective, selection, message
):
    with pytest.raises(InputError, match=message):
        build_new(load_text(small_store, selection), objective=objective)


def test_a_checkpoint_goes_on_in_its_direction(tmp_path, small_store, caplog):
    masked, causal = load_text(small_store, "count"), load_text(small_store, "causal")
    both_ways, left_to_right = str(tmp_path / "mlm"), str(tmp_path / "ltr")
    build_new(masked, objective="mlm").save_pretrained(both_ways)
    build_new(causal, objective="ltr").save_pretrained(left_to_right)
    build_new(masked, objective="mlm", model_name_or_path=both_ways)
    build_new(causal, objective="ltr", model_name_or_path=left_to_right)
    with pytest.raises(InputError, match=SEES_NEXT):
        build_new(causal, objective="ltr", model_name_or_path=both_ways)
    with pytest.raises(InputError, match=SEES_BEFORE):
        build_new(masked, objective="mlm", model_name_or_path=left_to_right)
    weights = {"temperature": 2.0, "alpha_ce": 5.0, "alpha_mlm": 2.0, "alpha_cos": 1.0}
    distillation = DistillationArguments(teacher=left_to_right, **weights)
    with pytest.raises(InputError, match="ltr reads from left to right; give one that reads both"):
        load_teacher(left_to_right, "distilbert", masked.tokenizer)
    student_args = ModelArguments(objective="distilbert")
    teacher = load_teacher(both_ways, "distilbert", masked.tokenizer)
    caplog.clear()
    load_teacher(both_ways, "tinybert", masked.tokenizer)
    assert "no weights for" not in caplog.text  # its heads are not read
    with pytest.raises(InputError, match=SEES_NEXT):
        build_model(student_args, distillation, causal, teacher, 1)


def test_instances_are_masked_whatever_the_selection_is(tmp_path, tokenizer):
    data = load_data(instance_arguments(tmp_path, selection="causal"), 1)
    with pytest.raises(InputError, match=SEES_BEFORE):
        build_new(data, objective="ltr")
    build_new(data, objective="mlm")


def test_word_embeddings_begin_as_vectors_of_neighbors_that_are_as_long_as_random_ones(small_store):
    data = load_data(DataArguments(store=str(small_store), max_seq_length=32), 1)
    random = build_new(data).state_dict()
    begun = build_new(data, word_vectors=True).state_dict()
    names = [name for name, weight in random.items() if not torch.equal(weight, begun[name])]
    name = "bert.embeddings.word_embeddings.weight"
    head = "cls.predictions."  # its weight and bias are tied
    assert sorted(names) == [name, f"{head}bias", f"{head}decoder.bias", f"{head}decoder.weight"]

    vectors = torch.from_numpy(piece_vectors(data.train.split, *random[name].shape))
    is_seen = torch.from_numpy(data.unigram_counts > 0)
    assert torch.equal(begun[name][~is_seen], random[name][~is_seen])
    length = random[name].norm(dim=1).mean()
    torch.testing.assert_close(begun[name][is_seen], vectors[is_seen] * length)
    frequencies = (data.unigram_counts + 1) / (data.unigram_counts + 1).sum()
    np.testing.assert_allclose(begun[f"{head}bias"].exp(), frequencies, rtol=1e-5)


def test_the_generator_of_electra_begins_with_frequencies(small_store):
    data_args = DataArguments(store=str(small_store), max_seq_length=32, pair_label="none")
    model = build_new(load_data(data_args, 1), objective="electra", word_vectors=True)
    bias = model.generator.get_output_embeddings().bias
    assert bias.exp().sum().item() == pytest.approx(1.0, rel=1e-5)


def test_masked_instances_have_no_word_vectors(tmp_path, tokenizer):
    data = load_data(instance_arguments(tmp_path), 1)
    begun = build_new(data, word_vectors=True).state_dict()
    for name, weight in build_new(data).state_dict().items():
        assert torch.equal(begun[name], weight), name
