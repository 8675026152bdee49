"""Ids that are not text: stores of numbers with names, sets without positions, a known chain."""

import itertools
import json

import numpy as np
import pytest
import torch
from small_corpora import contents_of

from bert_recipes.data.store import open_store
from bert_recipes.models.checkpoints import open_checkpoint


STATES = 6


def chain(seed=0):
    """Transitions of a Markov chain, and its stationary distribution."""
    rng = np.random.default_rng(seed)
    step = rng.dirichlet(np.full(STATES, 0.4), STATES)
    start = np.full(STATES, 1 / STATES)
    for _ in range(200):
        start = start @ step
    return start, step


def draw(number, length, seed):
    start, step = chain()
    rng = np.random.default_rng(seed)
    rows = np.empty((number, length), dtype=np.int64)
    rows[:, 0] = rng.choice(STATES, number, p=start)
    for place in range(1, length):
        draws = rng.random((number, 1))
        rows[:, place] = (step[rows[:, place - 1]].cumsum(1) < draws).sum(1).clip(max=STATES - 1)
    return rows


def entropy_between_neighbours():
    """Nats of a state whose neighbours are known: H(x_t | x_t-1, x_t+1)."""
    start, step = chain()
    total = 0.0
    for before, after in itertools.product(range(STATES), repeat=2):
        joint = start[before] * step[before] * step[:, after]
        shares = joint / joint.sum()
        total -= (joint * np.log(np.where(shares > 0, shares, 1))).sum()
    return total


@pytest.fixture
def names(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("".join(f"gene_{number}\n" for number in range(STATES)), encoding="utf-8")
    return file


def test_numbers_of_arrays_json_and_text_become_the_same_documents(call_recipe, names, tmp_path):
    rows = ["0 1 5", "2 2", "", "3", "4 4 4 0", "", "5 5"]
    (tmp_path / "b.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    documents = [[[0, 1, 5], [2, 2]], [[3], [4, 4, 4, 0]], [[5, 5]]]
    lines = [json.dumps({"ids": document}) + "\n" for document in documents]
    (tmp_path / "a.jsonl").write_text("".join(lines), encoding="utf-8")
    np.save(tmp_path / "c.npy", np.array([[0, 1, 5, -1], [3, 3, 3, 3]]))

    def tokens_of(name):
        folder = tmp_path / f"store-{name}"
        paths = f"--names {names} --files {tmp_path}/{name} --output_dir {folder}"
        call_recipe("prepare_corpus", paths, "--text_column ids --num_processes 1")
        train = open_store(folder).train
        return [token - 5 for token in train.tokens(0, train.num_sentences)]

    numbers = [int(number) for number in " ".join(rows).split()]
    assert tokens_of("a.jsonl") == tokens_of("b.txt") == numbers
    assert tokens_of("c.npy") == [0, 1, 5, 3, 3, 3, 3]
    vocabulary = (tmp_path / "store-c.npy" / "tokenizer" / "vocab.txt").read_text().split()
    assert vocabulary[5:] == names.read_text().split()


def test_tasks_on_a_cluster_make_the_store_of_ids(call_recipe, names, tmp_path):
    pytest.importorskip("datatrove", reason="datatrove is an extra")
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"{number} 1 5\n2 2\n", encoding="utf-8")
    flags = f"--names {names} --files {tmp_path}/?.txt --num_processes 1 --shard_gigabytes 1e-9"
    call_recipe("prepare_corpus", flags, f"--output_dir {tmp_path}/store")
    call_recipe("prepare_on_cluster", flags, f"--output_dir {tmp_path}/of_tasks --workers 1")

    assert contents_of(tmp_path / "of_tasks") == contents_of(tmp_path / "store")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("0 6", "", "6 has no name; allowed: 0 to 5"),
        ("0 gene_1", "", "ids are whole numbers"),
        ("-1 0", "", "-1 has no name"),
        ("0", "a b", "is not a name"),
        ("0", "gene_0", "appears twice"),
        ("0", "[CLS]", "is not a name"),
    ],
)
def test_numbers_without_a_name_and_names_that_are_none_are_one_line(
    call_recipe, names, tmp_path, text, name, message
):
    if name:
        names.write_text(f"{names.read_text()}{name}\n", encoding="utf-8")
    (tmp_path / "ids.txt").write_text(f"1 2\n\n{text}\n", encoding="utf-8")
    paths = f"--names {names} --files {tmp_path}/ids.txt --output_dir {tmp_path}/store"
    output = call_recipe("prepare_corpus", paths, "--num_processes 1", code=1)
    assert message in output
    assert "Traceback" not in output


def prepare(call_recipe, names, folder, number, length):
    np.save(folder / "train.npy", draw(number, length, 1))
    np.save(folder / "held.npy", draw(3000, length, 2))
    files = f"--names {names} --files {folder}/train.npy --validation_files {folder}/held.npy"
    call_recipe("prepare_corpus", files, f"--num_processes 1 --output_dir {folder}/store")
    return folder / "store"


SETTINGS = "--objective mlm --input_format doc_sentences"


def test_without_positions_outputs_move_with_their_ids(call_recipe, names, tmp_path):
    store = prepare(call_recipe, names, tmp_path, 40, 12)
    flags = (
        f"--store {store} --output_dir {tmp_path / 'run'} {SETTINGS} --positions none "
        "--max_seq_length 16 --max_steps 5 --eval_steps 5 --learning_rate 1e-2 "
        "--global_train_batch_size 8 --per_device_train_batch_size 8"
    )
    call_recipe("pretrain", flags)
    model = open_checkpoint(str(tmp_path / "run"), cached_only=True)[0].eval()
    ids = torch.randint(5, 11, (1, 10))
    order = torch.randperm(10)
    hidden = model.bert(ids).last_hidden_state
    moved = model.bert(ids[:, order]).last_hidden_state
    torch.testing.assert_close(hidden[:, order], moved, rtol=1e-4, atol=1e-4)
    assert not model.bert.embeddings.position_embeddings.weight.requires_grad


@pytest.mark.slow
def test_the_loss_on_a_markov_chain_comes_down_to_its_entropy_and_no_further(
    call_recipe, names, tmp_path
):
    store = prepare(call_recipe, names, tmp_path, 4000, 60)
    flags = (
        f"--store {store} --output_dir {tmp_path / 'run'} {SETTINGS} --max_seq_length 64 "
        "--mlm_probability 0.02 --mask_rate 1 --keep_rate 0 --random_rate 0 --max_eval_pairs 3000 "
        "--max_steps 1500 --global_train_batch_size 32 --per_device_train_batch_size 32 "
        "--dropout 0 --optimizer muon --muon_learning_rate 0.01 --learning_rate 4e-3 "
        "--warmup_steps 0.06 --weight_init sinusoidal_positions --initializer_range 0.06 "
        "--adam_beta2 0.98 --eval_steps 1500 --logging_steps 500"
    )
    call_recipe("pretrain", flags)
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    entropy = entropy_between_neighbours()
    # 3,000 held-out rows have 3,000 predicted states: their mean is known to 0.02 nats.
    assert entropy - 0.05 < results["eval_mlm_loss"] < entropy + 0.1
