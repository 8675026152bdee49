"""recipes/add_tokens.py, and pre-training that goes on from what it writes."""

import json

import transformers


def test_new_words_then_pre_training_goes_on(call_recipe, tiny_checkpoint, tmp_path):
    text = (
        "The heart of the infarct is the infarct. And the myocardium of the infarct and "
        "myocardium.\n\n"
    )
    (tmp_path / "text.txt").write_text(text * 30)
    larger = tmp_path / "larger"
    flags = [
        "--model_name_or_path",
        tiny_checkpoint,
        "--files",
        tmp_path / "text.txt",
        "--num_tokens",
        "2",
    ]
    said = call_recipe("add_tokens", *flags, "--output_dir", larger)
    report = json.loads((larger / "new_tokens.json").read_text())
    assert [*report["tokens"]] == ["infarct", "myocardium"]
    assert report["tokens"]["infarct"]["count"] == 90
    assert "2 new tokens" in said
    old, new = (
        transformers.BertForPreTraining.from_pretrained(folder)
        for folder in (tiny_checkpoint, larger)
    )
    assert new.config.vocab_size == old.config.vocab_size + 2
    stock = transformers.AutoTokenizer.from_pretrained(larger)
    assert stock.tokenize("infarct") == ["infarct"]

    flags = ["--files", tmp_path / "text.txt", "--tokenizer", larger, "--num_processes", "1"]
    call_recipe("prepare_corpus", *flags, "--output_dir", tmp_path / "store")
    flags = [
        "--model_name_or_path",
        larger,
        "--store",
        tmp_path / "store",
        "--max_steps",
        "2",
        "--warmup_steps",
        "1",
    ]
    flags += [
        "--max_seq_length",
        "32",
        "--per_device_train_batch_size",
        "4",
        "--global_train_batch_size",
        "4",
    ]
    flags += [
        "--eval_strategy",
        "no",
        "--use_cpu",
        "true",
        "--save_strategy",
        "no",
        "--precision",
        "fp32",
    ]
    call_recipe("pretrain", *flags, "--output_dir", tmp_path / "run")
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text())["vocab_size"]
        == new.config.vocab_size
    )


def test_mistakes_are_one_line(call_recipe, tiny_checkpoint, tmp_path):
    (tmp_path / "words.txt").write_text("infarct\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    words = ["--tokens_file", tmp_path / "words.txt"]
    cases = {
        "is not empty": [
            "--model_name_or_path",
            tiny_checkpoint,
            *words,
            "--output_dir",
            tmp_path / "full",
        ],
        "no folder nowhere": [
            "--model_name_or_path",
            "nowhere/at/all",
            *words,
            "--output_dir",
            tmp_path / "new",
        ],
        "give either --files": [
            "--model_name_or_path",
            tiny_checkpoint,
            "--output_dir",
            tmp_path / "new",
        ],
    }
    for message, flags in cases.items():
        said = call_recipe("add_tokens", *flags, code=1).splitlines()[-1]
        assert said.startswith("error: ")
        assert message in said
    assert not (tmp_path / "new").exists()
