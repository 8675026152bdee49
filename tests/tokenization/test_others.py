"""Byte-level BPE as RoBERTa has it, and tokenizers of stock that are no WordPiece."""

import pickle
import random

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.others import train_byte_bpe, train_unigram


TEXTS = ["the best cost of the best menu", "men and camels cost the most"] * 5


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_bpe(TEXTS, vocab_size=300, show_progress=False)[0]


def test_ids_are_laid_out_as_robertas(tokenizer):
    """fairseq data/dictionary.py: <s>, <pad>, </s>, <unk> first; <mask> last."""
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.mask_token_id == len(tokenizer) - 1
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id) == (0, 2, 1)
    assert tokenizer("a", "b")["input_ids"] == [
        0,
        *tokenizer.encode_ids("a"),
        2,
        2,
        *tokenizer.encode_ids("b"),
        2,
    ]


def test_every_text_has_ids_and_comes_back(tokenizer):
    """Radford et al. 2019, section 2.2: 256 bytes are enough for all texts; no special token is
    read in one.
    """
    rng = random.Random(0)
    texts = [
        "".join(
            chr(rng.choice([rng.randrange(32, 0xD800), rng.randrange(0xE000, 0x110000)]))
            for _ in range(20)
        )
    ]
    texts += ["你好, <mask> </s> <pad>!", bytes(range(32, 127)).decode(), "  two  spaces "]
    for text in texts:
        ids = tokenizer.encode_ids(text)
        assert not {0, 1, 2, 3, tokenizer.mask_token_id} & set(ids)
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False).lstrip() == text.lstrip()
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode_ids("best")) == ["\u0120best"]


def test_training_is_a_function_of_the_texts_whatever_their_order():
    one, two = (
        train_byte_bpe(texts, vocab_size=290, show_progress=False) for texts in (TEXTS, TEXTS[::-1])
    )
    assert one[0].get_vocab() == two[0].get_vocab()
    assert one[1] == two[1]
    assert one[1]["words"] == 65
    assert 1 <= one[1]["pieces_per_word"] < 5


def test_a_saved_folder_is_stocks_and_is_opened_again_with_the_same_ids(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    stock, own = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert type(stock) is RobertaTokenizer
    assert own.fingerprint == tokenizer.fingerprint
    text = "Camels, men & menus."
    assert (
        own.encode_ids(text)
        == stock(text, add_special_tokens=False)["input_ids"]
        == tokenizer.encode_ids(text)
    )
    assert pickle.loads(pickle.dumps(own.text_encoder))(text) == own.encode_ids(text)
    assert stock("the <mask> cost").input_ids.count(stock.mask_token_id) == 1


def test_a_prompt_has_no_stray_piece_before_its_mask(tokenizer):
    """<mask> takes the space before it: a stock RobertaTokenizer without that flag leaves one."""
    assert "\u0120" not in tokenizer.convert_ids_to_tokens(
        tokenizer("the <mask> cost")["input_ids"]
    )


def test_what_cannot_be_trained_or_opened_is_one_line(tmp_path):
    with pytest.raises(InputError, match="needs 261 at least"):
        train_byte_bpe(TEXTS, vocab_size=260, show_progress=False)
    with pytest.raises(InputError, match="no word in the 1 texts"):
        train_byte_bpe([" "], vocab_size=300, show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE({"a": 0}, []))).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="its tokenizer has no cls_token"):
        load_tokenizer(tmp_path)


def test_a_unigram_vocabulary_has_alberts_ids_and_loads_in_stock(tmp_path):
    """google-research/albert: <pad>, <unk>, [CLS], [SEP], [MASK]; uncased, no accents, quotes of
    two characters are one.
    """
    tokenizer, measured = train_unigram(TEXTS * 3, vocab_size=60, show_progress=False)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 4]) == [
        "<pad>",
        "<unk>",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]
    assert measured["pieces_per_word"] >= 1
    tokenizer.save_pretrained(tmp_path)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    assert type(stock).__name__ == "AlbertTokenizer"
    for text in ("The best MENU", "Caf\u00e9 ``menu''"):
        assert stock(text)["input_ids"] == [2, *tokenizer.encode_ids(text), 3]
    again, _ = train_unigram(TEXTS * 3, vocab_size=60, show_progress=False)
    assert again.get_vocab() == tokenizer.get_vocab()
