"""The family of BERT as a user makes it: text, vocabulary, store, run, and a folder that stock
loads.
"""

import json

import pytest
import transformers
from in_process import run_recipe


FLAGS = (
    "--max_seq_length 32 --max_steps 3 --warmup_steps 1 --global_train_batch_size 4 "
    "--per_device_train_batch_size 4 --eval_steps 3 --max_eval_pairs 10 --logging_steps 1"
)
# Objective -> stock's class, flags of the run, flags that measure on the same inputs.
MEMBERS = {
    "mlm": ("BertForMaskedLM", "--input_format doc_sentences --selection spans", ""),
    "ltr": ("BertLMHeadModel", "", "--selection causal --pair_label none"),
    "roberta": ("RobertaForMaskedLM", "", "--input_format full_sentences --selection fairseq"),
    "albert": (
        "AlbertForPreTraining",
        "--share_layers none",
        "--pair_label order --selection ngrams",
    ),
    "electra": (
        "ElectraForPreTraining",
        "",
        "--input_format electra --pair_label none --mask_rate 0.85 --keep_rate 0.15 "
        "--random_rate 0",
    ),
}
SENTENCE = "the men of the camel menu cost best most and often more than other menus do"


def read(file):
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def byte_store(tmp_path_factory):
    """A store of English sentences over RoBERTa's kind of vocabulary."""
    folder = tmp_path_factory.mktemp("bytes")
    text, words = "", SENTENCE.split()
    for document in range(30):
        for number in range(document, document + 12):
            text += " ".join(words[number % 9 :][: 3 + number % 7]) + ".\n"
        text += "\n"
    (folder / "text.txt").write_text(text, encoding="utf-8")
    files = f"--files {folder}/text.txt"
    tokenizer = f"--algorithm byte_bpe --vocab_size 300 --output_dir {folder}/bpe"
    run_recipe("../tokenizer/train", files, tokenizer)
    flags = f"--sentences lines --validation_fraction 0.2 --tokenizer {folder}/bpe"
    run_recipe("prepare_corpus", files, flags, "--num_processes 1 --output_dir", folder / "store")
    return folder / "store"


@pytest.fixture(scope="module")
def teacher(byte_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    run_recipe("pretrain", "--store", byte_store, "--output_dir", folder, FLAGS, "--size mini")
    return folder


def open_stock(kind, folder):
    """Open a folder as a class of stock's, which must find all weights and no others."""
    stock_class = getattr(transformers, kind)
    model, loading = stock_class.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    return model


@pytest.mark.parametrize("objective", MEMBERS)
def test_a_run_leaves_a_folder_that_stock_loads_and_that_is_measured_again(
    call_recipe, byte_store, tmp_path, objective
):
    kind, flags, inputs = MEMBERS[objective]
    folder, file = tmp_path / "run", tmp_path / "results.json"
    paths = ("--store", byte_store, "--output_dir", folder)
    call_recipe("pretrain", *paths, "--objective", objective, FLAGS, flags)
    open_stock(kind, folder)
    model = transformers.AutoModelForPreTraining.from_pretrained(folder)
    is_own_member = objective not in ("mlm", "ltr")
    assert (type(model).__name__ == model.config.architectures[0] == kind) is is_own_member
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("the best menu")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == "the best menu"
    results = read(folder / "all_results.json")
    report = (folder / "report.md").read_text() + (folder / "README.md").read_text()
    assert ("sentence-order accuracy" in report) == (objective == "albert")
    assert ("eval_sop_accuracy" in results) == (objective == "albert")
    assert ("replaced tokens that are found" in report) == (objective == "electra")
    assert ("eval_replaced_recall" in results) == (objective == "electra")
    assert "next-sentence" not in report
    assert f"A `{kind}`" in report
    use = "feature-extraction" if objective in ("ltr", "electra") else "fill-mask"
    assert f'pipeline("{use}", model=' in report
    assert ("| input_format | full_sentences |" in report) == (objective == "roberta")
    assert " | 0 |" not in report.partition("## Results")[2].partition("##")[0]
    paths = ("--model_name_or_path", folder, "--store", byte_store, "--results_file", file)
    flags = f"{inputs or flags} --max_seq_length 32 --max_eval_pairs 10"
    call_recipe("evaluate_checkpoint", *paths, flags, "--output_dir", tmp_path / "x")
    loss = pytest.approx(results["eval_mlm_loss"], rel=1e-3)
    assert read(file)["eval_mlm_loss"] == loss
    if objective == "electra":
        # Its generator by itself is a masked LM.
        paths = ("--model_name_or_path", folder / "generator", *paths[2:])
        call_recipe("evaluate_checkpoint", *paths, flags, "--output_dir", tmp_path / "y")
        assert read(file)["eval_mlm_loss"] == loss


def test_a_teacher_makes_a_student(call_recipe, byte_store, teacher, tmp_path):
    paths = ("--store", byte_store, "--output_dir", tmp_path, "--teacher", teacher)
    call_recipe("pretrain", *paths, FLAGS, "--objective distilbert")
    assert open_stock("DistilBertForMaskedLM", tmp_path).config.n_layers == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--share_layers all", "share_layers is for --objective albert; it has no meaning with"),
        ("--objective albert --share_layers ffn", "share_layers is 'ffn'; allowed: all, none"),
        ("--pair_label none", "give --objective mlm"),
        ("--input_format full_sentences", "give --objective mlm"),
        (
            "--objective electro",
            "objective is 'electro'; allowed: bert, mlm, ltr, roberta, albert, electra, distilbert",
        ),
    ],
)
def test_what_does_not_fit_together_is_one_line(call_recipe, byte_store, tmp_path, flags, message):
    paths = ("--store", byte_store, "--output_dir", tmp_path / "run")
    output = call_recipe("pretrain", *paths, FLAGS, flags, code=1)
    assert message in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_tinybert_learns_from_a_teacher_and_leaves_a_folder_of_stocks_weights(
    call_recipe, byte_store, teacher, tmp_path
):
    paths = ("--store", byte_store, "--output_dir", tmp_path, "--teacher", teacher)
    flags = "--objective tinybert --size tiny --max_steps 30 --learning_rate 1e-3"
    call_recipe("pretrain", *paths, FLAGS, flags)
    stock = open_stock("BertForMaskedLM", tmp_path)
    assert (stock.config.num_hidden_layers, stock.config.num_attention_heads) == (2, 4)
    assert "by imitating the layers of teacher" in (tmp_path / "README.md").read_text()
    history = read(tmp_path / "trainer_state.json")["log_history"]
    losses = [line["eval_loss"] for line in history if "eval_loss" in line]
    assert read(tmp_path / "all_results.json")["eval_loss"] < losses[0]
    report = (tmp_path / "report.md").read_text()
    assert "hidden states, squared error" in report
    assert f"{stock.num_parameters():,}" in report
