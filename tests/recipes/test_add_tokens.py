"""recipes/add_tokens.py, and pre-training that goes on from what it writes."""

import json
import shutil

import transformers


FLAGS = (
    "--max_steps 2 --warmup_steps 1 --max_seq_length 32 --per_device_train_batch_size 4 "
    "--global_train_batch_size 4 --eval_strategy no --use_cpu true --save_strategy no "
    "--precision fp32"
)


def test_new_words_then_pre_training_goes_on(call_recipe, tiny_checkpoint, tmp_path):
    text = (
        "The heart of the infarct is the infarct. And the myocardium of the infarct and "
        "myocardium.\n\n"
    )
    (tmp_path / "text.txt").write_text(text * 30)
    larger = tmp_path / "larger"
    files = f"--files {tmp_path}/text.txt"
    flags = f"--model_name_or_path {tiny_checkpoint} --num_tokens 2 --output_dir {larger}"
    output = call_recipe("add_tokens", files, flags)
    assert "2 new tokens" in output
    report = json.loads((larger / "new_tokens.json").read_text())
    assert list(report["tokens"]) == ["infarct", "myocardium"]
    assert report["tokens"]["infarct"]["count"] == 90
    old_size = transformers.AutoConfig.from_pretrained(tiny_checkpoint).vocab_size
    assert transformers.AutoConfig.from_pretrained(larger).vocab_size == old_size + 2
    assert transformers.AutoTokenizer.from_pretrained(larger).tokenize("infarct") == ["infarct"]

    store, run = tmp_path / "store", tmp_path / "run"
    flags = f"--tokenizer {larger} --num_processes 1 --output_dir {store}"
    call_recipe("prepare_corpus", files, flags)
    paths = f"--model_name_or_path {larger} --store {store} --output_dir {run}"
    call_recipe("pretrain", paths, FLAGS)
    assert json.loads((run / "config.json").read_text())["vocab_size"] == old_size + 2


def test_a_masked_lm_stays_one_and_a_classifier_is_refused(call_recipe, tiny_checkpoint, tmp_path):
    """Heads that are drawn at random would look like those that have learned."""
    (tmp_path / "words.txt").write_text("infarct\n")
    for name, model_class in (
        ("mlm", transformers.BertForMaskedLM),
        ("classifier", transformers.BertForSequenceClassification),
    ):
        shutil.copytree(tiny_checkpoint, tmp_path / name)
        model_class.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / name)
    flags = f"--tokens_file {tmp_path}/words.txt --output_dir {tmp_path}/new --model_name_or_path"
    call_recipe("add_tokens", f"{flags} {tmp_path}/mlm")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "new")
    assert config.architectures == ["BertForMaskedLM"]
    shutil.rmtree(tmp_path / "new")
    edit = tmp_path / "mlm" / "config.json"
    edit.write_text(json.dumps(json.loads(edit.read_text()) | {"is_decoder": True}))
    call_recipe("add_tokens", f"{flags} {tmp_path}/mlm")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "new")
    assert config.architectures == ["BertLMHeadModel"]
    shutil.rmtree(tmp_path / "new")
    error = call_recipe("add_tokens", f"{flags} {tmp_path}/classifier", code=1)
    assert "has no masked-LM head; give a BERT as it was pre-trained" in error


def test_mistakes_are_one_line(call_recipe, tiny_checkpoint, tmp_path):
    (tmp_path / "words.txt").write_text("infarct\n")
    other = shutil.copytree(tiny_checkpoint, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "distilbert"}))
    model, words = f"--model_name_or_path {tiny_checkpoint}", f"--tokens_file {tmp_path}/words.txt"
    narrow = shutil.copytree(tiny_checkpoint, tmp_path / "narrow")
    narrow_model = transformers.BertForPreTraining.from_pretrained(narrow)
    narrow_model.resize_token_embeddings(narrow_model.config.vocab_size - 1, mean_resizing=False)
    narrow_model.save_pretrained(narrow)
    cases = {
        "pieces: they do not belong together": f"{words} --model_name_or_path {narrow}",
        "is not empty": f"{model} {words} --output_dir {tmp_path}",
        "no folder nowhere": f"{words} --model_name_or_path nowhere/at/all",
        "give either --files": model,
        "is no BERT: the model_type in its config.json is 'distilbert'": (
            f"{words} --model_name_or_path {other}"
        ),
    }
    for message, flags in cases.items():
        output = call_recipe("add_tokens", "--output_dir", tmp_path / "new", flags, code=1)
        line = output.splitlines()[-1]
        assert line.startswith("error: ")
        assert message in line
    assert not (tmp_path / "new").exists()
