"""RoBERTa, ALBERT and DistilBERT as a user makes them: text, vocabulary, store, run, and a folder
that stock loads.
"""

import json
import subprocess
import sys

import pytest
import transformers


FLAGS = [
    "--max_seq_length",
    32,
    "--max_steps",
    3,
    "--warmup_steps",
    1,
    "--global_train_batch_size",
    4,
    "--eval_steps",
    3,
]
FLAGS += ["--per_device_train_batch_size", 4, "--max_eval_pairs", 10, "--logging_steps", 1]
FOLDERS = {
    "mlm": ("BertForMaskedLM", ["--input_format", "doc_sentences", "--selection", "spans"]),
    "ltr": ("BertLMHeadModel", []),
    "roberta": ("RobertaForMaskedLM", []),
    "albert": ("AlbertForPreTraining", ["--share_layers", "none"]),
    "electra": ("ElectraForPreTraining", []),
}


@pytest.fixture(scope="module")
def byte_store(repository, tmp_path_factory):
    """A store of English sentences over RoBERTa's kind of vocabulary."""
    folder = tmp_path_factory.mktemp("bytes")
    words = [
        "the",
        "men",
        "of",
        "the",
        "camel",
        "menu",
        "cost",
        "best",
        "most",
        "and",
        "often",
        "more",
        "than",
        "other",
        "menus",
        "do",
    ]
    documents = [
        "\n".join(" ".join(words[n % 9 :][: 3 + n % 7]) + "." for n in range(d, d + 12))
        for d in range(30)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    train = [sys.executable, "tokenizer/train.py", "--algorithm", "byte_bpe", "--vocab_size", "300"]
    train += ["--files", str(folder / "text.txt"), "--output_dir", str(folder / "bpe")]
    prepare = [
        sys.executable,
        "recipes/prepare_corpus.py",
        "--files",
        str(folder / "text.txt"),
        "--sentences",
        "lines",
    ]
    prepare += [
        "--tokenizer",
        str(folder / "bpe"),
        "--validation_fraction",
        "0.2",
        "--output_dir",
        str(folder / "store"),
    ]
    for command in (train, prepare):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=repository)
        assert done.returncode == 0, done.stderr[-2000:]
    return folder / "store"


@pytest.mark.parametrize("objective", FOLDERS)
def test_a_run_leaves_a_folder_that_stock_loads_and_that_is_measured_again(
    call_recipe, byte_store, tmp_path, objective
):
    kind, flags = FOLDERS[objective]
    folder, file = tmp_path / "run", tmp_path / "results.json"
    call_recipe(
        "pretrain",
        "--store",
        byte_store,
        "--objective",
        objective,
        "--output_dir",
        folder,
        *FLAGS,
        *flags,
    )
    model = transformers.AutoModelForPreTraining.from_pretrained(folder)
    assert type(model).__name__ == model.config.architectures[0] == kind or objective in (
        "mlm",
        "ltr",
    )
    _stock, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (
        tokenizer.decode(tokenizer("the best menu")["input_ids"], skip_special_tokens=True).strip()
        == "the best menu"
    )
    results = json.loads((folder / "all_results.json").read_text())
    report = (folder / "report.md").read_text() + (folder / "README.md").read_text()
    assert (
        ("sentence-order accuracy" in report)
        == ("eval_sop_accuracy" in results)
        == (objective == "albert")
    )
    assert "next-sentence" not in report
    assert (
        ("replaced tokens that are found" in report)
        == ("eval_replaced_recall" in results)
        == (objective == "electra")
    )
    assert f"A `{kind}`" in report
    use = "feature-extraction" if objective in ("ltr", "electra") else "fill-mask"
    assert f'pipeline("{use}", model=' in report
    assert ("| input_format | full_sentences |" in report) == (objective == "roberta")
    assert " | 0 |" not in report.partition("## Results")[2].partition("##")[0]
    measure = [
        "--model_name_or_path",
        folder,
        "--store",
        byte_store,
        "--max_seq_length",
        32,
        "--max_eval_pairs",
        10,
    ]
    inputs = {
        "mlm": flags,
        "ltr": ["--selection", "causal", "--pair_label", "none"],
        "roberta": ["--input_format", "full_sentences", "--selection", "fairseq"],
        "electra": [
            "--input_format",
            "electra",
            "--pair_label",
            "none",
            "--mask_rate",
            "0.85",
            "--keep_rate",
            "0.15",
            "--random_rate",
            "0",
        ],
    }
    measure += inputs.get(objective, ["--pair_label", "order", "--selection", "ngrams"])
    call_recipe(
        "evaluate_checkpoint", *measure, "--output_dir", tmp_path / "x", "--results_file", file
    )
    assert json.loads(file.read_text())["eval_mlm_loss"] == pytest.approx(
        results["eval_mlm_loss"], rel=1e-3
    )


def test_a_teacher_makes_a_student_and_the_same_command_resumes_it(
    call_recipe, byte_store, tmp_path
):
    teacher, folder = tmp_path / "teacher", tmp_path / "student"
    call_recipe(
        "pretrain", "--store", byte_store, "--size", "mini", "--output_dir", teacher, *FLAGS
    )
    flags = [
        "--store",
        byte_store,
        "--objective",
        "distilbert",
        "--teacher",
        teacher,
        "--output_dir",
        folder,
        *FLAGS,
    ]
    call_recipe("pretrain", *flags, "--save_steps", 2)
    stock, info = transformers.DistilBertForMaskedLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert stock.config.n_layers == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--share_layers", "all"],
            "share_layers is for --objective albert; it has no meaning with bert",
        ),
        (
            ["--objective", "albert", "--share_layers", "ffn"],
            "share_layers is 'ffn'; allowed: all, none",
        ),
        (["--objective", "distilbert"], "needs a teacher"),
        (
            ["--objective", "roberta", "--pair_label", "order"],
            "full_sentences has no order to learn",
        ),
        (["--pair_label", "none"], "give --objective mlm"),
        (["--objective", "albert", "--pair_label", "none"], "give --objective mlm"),
        (["--input_format", "full_sentences"], "give --objective mlm"),
        (
            ["--objective", "roberta", "--max_position_embeddings", "16"],
            "the model has 16 positions",
        ),
        (
            ["--objective", "electro"],
            "objective is 'electro'; allowed: bert, mlm, ltr, roberta, albert, electra, distilbert",
        ),
    ],
)
def test_what_does_not_fit_together_is_one_line(call_recipe, byte_store, tmp_path, flags, message):
    said = call_recipe(
        "pretrain", "--store", byte_store, "--output_dir", tmp_path / "run", *FLAGS, *flags, code=1
    )
    assert message in said
    assert "Traceback" not in said


def test_tinybert_learns_from_a_teacher_and_leaves_a_folder_of_stocks_weights(
    call_recipe, byte_store, tmp_path
):
    teacher, folder = tmp_path / "teacher", tmp_path / "student"
    call_recipe(
        "pretrain", "--store", byte_store, "--size", "mini", "--output_dir", teacher, *FLAGS
    )
    flags = [
        "--store",
        byte_store,
        "--objective",
        "tinybert",
        "--teacher",
        teacher,
        "--output_dir",
        folder,
        *FLAGS,
    ]
    call_recipe("pretrain", *flags, "--size", "tiny", "--max_steps", 30, "--learning_rate", "1e-3")
    stock, info = transformers.BertForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert (stock.config.num_hidden_layers, stock.config.num_attention_heads) == (2, 4)
    assert "by imitating the layers of a teacher" in (folder / "README.md").read_text()
    results = json.loads((folder / "all_results.json").read_text())
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert results["eval_loss"] < next(line["eval_loss"] for line in history if "eval_loss" in line)
    assert "hidden states, squared error" in (folder / "report.md").read_text()
    assert f"{stock.num_parameters():,}" in (folder / "report.md").read_text()
