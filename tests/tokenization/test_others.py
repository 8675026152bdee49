"""Byte-level BPE as RoBERTa has it, and tokenizers of stock that are no WordPiece."""

import json
import pickle

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.others import train_byte_bpe, train_unigram
from bert_recipes.tokenization.wordpiece import PairLayout


TEXTS = ["the best cost of the best menu", "men and camels cost the most"] * 5


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_bpe(TEXTS, vocab_size=300, show_progress=False)[0]


def test_ids_are_laid_out_as_robertas(tokenizer):
    """fairseq data/dictionary.py: <s>, <pad>, </s>, <unk> first; <mask> last."""
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.mask_token_id == len(tokenizer) - 1
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id) == (0, 2, 1)
    first, second = tokenizer.encode_ids("a"), tokenizer.encode_ids("b")
    assert tokenizer("a", "b")["input_ids"] == [0, *first, 2, 2, *second, 2]


def test_every_text_has_ids_and_comes_back(tokenizer):
    """Radford et al. 2019, section 2.2: 256 bytes are enough; no special token is read."""
    planes = "\u0600\ud7ff\ue000\uffff\U00010000\U0001f600\U0010ffff"
    ascii_text = bytes(range(32, 127)).decode()
    for text in [planes, "你好, <mask> </s> <pad>!", ascii_text, "  two  spaces "]:
        ids = tokenizer.encode_ids(text)
        assert not {0, 1, 2, 3, tokenizer.mask_token_id} & set(ids)
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False).lstrip() == text.lstrip()
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode_ids("best")) == ["\u0120best"]


def test_training_is_a_function_of_the_texts_whatever_their_order():
    first, report = train_byte_bpe(TEXTS, vocab_size=290, show_progress=False)
    second, same_report = train_byte_bpe(TEXTS[::-1], vocab_size=290, show_progress=False)
    assert first.get_vocab() == second.get_vocab()
    assert report == same_report
    assert report["words"] == 65
    assert 1 <= report["pieces_per_word"] < 5


def test_a_saved_folder_is_stocks_and_is_opened_again_with_the_same_ids(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    stock, loaded = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert type(stock) is RobertaTokenizer
    assert loaded.fingerprint == tokenizer.fingerprint
    text = "Camels, men & menus."
    ids = tokenizer.encode_ids(text)
    assert loaded.encode_ids(text) == ids
    assert stock(text, add_special_tokens=False)["input_ids"] == ids
    assert pickle.loads(pickle.dumps(loaded.text_encoder))(text) == ids
    # <mask> takes the space before it: a stock RobertaTokenizer without that flag leaves a piece.
    prompt = stock.convert_ids_to_tokens(stock("the <mask> cost")["input_ids"])
    assert prompt.count("<mask>") == 1
    assert "\u0120" not in prompt


HINDI = ["हिन्दी में लिखा", "एक और वाक्य है"] * 9


@pytest.mark.parametrize(
    ("settings", "text", "is_warned"),
    [
        ({}, "हनद", True),  # every vowel sign is gone
        ({"strip_accents": False}, "हिन्दी", False),
        ({"lowercase": False}, "हिन्दी", False),
    ],
)
def test_a_unigram_vocabulary_keeps_accents_where_it_is_told_to(
    settings, text, is_warned, tmp_path, caplog
):
    tokenizer, _ = train_unigram(HINDI, vocab_size=60, show_progress=False, **settings)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)

    assert loaded.decode(loaded.encode_ids("हिन्दी")) == text
    assert ("Stripping accents drops" in caplog.text) is is_warned


def test_what_cannot_be_trained_or_opened_is_one_line(tmp_path):
    with pytest.raises(InputError, match="needs 261 at least"):
        train_byte_bpe(TEXTS, vocab_size=260, show_progress=False)
    with pytest.raises(InputError, match="no word in the 1 texts"):
        train_byte_bpe([" "], vocab_size=300, show_progress=False)
    # 14 letters, the mark of a word's beginning and 5 special tokens.
    with pytest.raises(InputError, match=r"19 was given, .* 14 characters.* 20 at least"):
        train_unigram(TEXTS, vocab_size=19, show_progress=False)
    with pytest.raises(InputError, match="vocab_size: 3 was given"):
        train_unigram(TEXTS, vocab_size=3, show_progress=False)
    assert len(train_unigram(["\ufb01n"], vocab_size=9, show_progress=False)[0]) == 9
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE({"a": 0}, []))).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="its tokenizer has no cls_token"):
        load_tokenizer(tmp_path)


def test_a_unigram_vocabulary_has_alberts_ids_and_loads_in_stock(tmp_path):
    """google-research/albert: uncased, no accents; stock's AlbertTokenizer makes one character of
    the quotes `` and ''.
    """
    tokenizer, report = train_unigram(TEXTS * 3, vocab_size=60, show_progress=False)
    special = tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 4])
    assert special == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert report["pieces_per_word"] >= 1
    tokenizer.save_pretrained(tmp_path)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    assert type(stock).__name__ == "AlbertTokenizer"
    for text in ("The best MENU", "Caf\u00e9 ``menu''"):
        assert stock(text)["input_ids"] == [2, *tokenizer.encode_ids(text), 3]
    again, _ = train_unigram(TEXTS * 3, vocab_size=60, show_progress=False)
    assert again.get_vocab() == tokenizer.get_vocab()


def test_padding_and_truncation_of_a_call_before_a_folder_was_saved_are_left_out(
    tokenizer, tmp_path
):
    tokenizer.save_pretrained(tmp_path / "saved")
    stock = AutoTokenizer.from_pretrained(tmp_path / "saved")
    stock("the best", padding="max_length", truncation=True, max_length=4)
    stock.save_pretrained(tmp_path / "called")
    assert '"Fixed": 4' in (tmp_path / "called" / "tokenizer.json").read_text()
    loaded = load_tokenizer(tmp_path / "called")
    for text in ("men", "the best cost of the best menu"):
        assert loaded.encode_ids(text) == tokenizer.encode_ids(text)
        assert loaded.encode_word(text) == tokenizer.encode_word(text)
    loaded.save_pretrained(tmp_path / "store")
    stored = load_tokenizer(tmp_path / "store")
    assert tokenizer.fingerprint == loaded.fingerprint == stored.fingerprint


def test_words_are_measured_of_the_first_texts_alone(monkeypatch):
    """Those of all texts may take more memory than there is."""
    texts = ["a b", *TEXTS]
    monkeypatch.setattr("bert_recipes.tokenization.others.MEASURED_CHARACTERS", 3)
    _, report = train_byte_bpe(texts, vocab_size=290, show_progress=False)
    assert report["pieces_per_word"] == 1
    assert report["words"] == 67
    assert report["characters"] == sum(map(len, texts))


def test_a_file_that_does_not_name_its_model_is_opened(tokenizer, tmp_path):
    """As released RoBERTa's and XLM-RoBERTa's, which are older than `type`."""
    unigram, _ = train_unigram(TEXTS, vocab_size=40, show_progress=False)
    for trained in (tokenizer, unigram):
        folder = tmp_path / type(trained).__name__
        trained.save_pretrained(folder)
        file = folder / "tokenizer.json"
        serialized = json.loads(file.read_text(encoding="utf-8"))
        del serialized["model"]["type"]
        file.write_text(json.dumps(serialized), encoding="utf-8")

        loaded = load_tokenizer(folder)
        assert type(loaded) is type(trained)
        assert loaded.encode_ids("the best menu") == trained.encode_ids("the best menu")


SPECIAL_OF_BPE = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


def save_own_bpe(folder, template=None, merges=()):
    """A BPE that somebody made of the library's parts, with three Georgian letters."""
    pieces = [*SPECIAL_OF_BPE.values(), "ა", "ბ", "გ"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    own = Tokenizer(BPE(vocabulary, list(merges)))
    own.post_processor = template
    tokens = {f"{name}_token": token for name, token in SPECIAL_OF_BPE.items()}
    PreTrainedTokenizerFast(tokenizer_object=own, **tokens).save_pretrained(folder)


def test_a_tokenizer_that_adds_no_special_tokens_is_refused(tmp_path):
    save_own_bpe(tmp_path)
    with pytest.raises(InputError, match="puts no <s> before two texts, or no </s> behind them"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_without_latin_letters_is_opened(tmp_path):
    template = TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 0), ("</s>", 2)])
    save_own_bpe(tmp_path, template)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.layout == PairLayout((0,), (2,), (2,), 0)
    assert tokenizer.encode_ids("ბა") == [6, 5]


def test_a_cased_vocabulary_without_latin_letters_stays_cased(tmp_path):
    """Neither A nor a has an id of its own in it."""
    texts = ["ДОМ дом Дома дома"] * 5
    trained, _ = train_unigram(texts, vocab_size=30, lowercase=False, show_progress=False)
    trained.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == trained.fingerprint
    assert loaded.encode_ids("ДОМ") != loaded.encode_ids("дом")
    loaded.save_pretrained(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").fingerprint == trained.fingerprint
    assert pickle.loads(pickle.dumps(loaded)).normalize("Дом") == "Дом"


def test_a_file_that_the_library_cannot_read_is_one_line(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    serialized = json.loads(file.read_text(encoding="utf-8"))
    serialized["pre_tokenizer"] = {"type": "NotYetThere"}
    file.write_text(json.dumps(serialized), encoding="utf-8")
    with pytest.raises(InputError, match="stock transformers opens no tokenizer there"):
        load_tokenizer(tmp_path)
