"""Text to WordPiece ids as in google-research/bert, and training of vocabularies.

======================  ======================================================================
file                    what it holds
======================  ======================================================================
normalization.py        the original's BasicTokenizer on whole strings; `normalize_text`
wordpiece.py            the original's WordpieceTokenizer with a memory of words
text_encoder.py         both, for bulk work in any process
bert_tokenizer.py       `OriginalBertTokenizer`: both behind Hugging Face's interface
alignment.py            offsets in the caller's text
loading.py              `load_tokenizer`: from a folder, a vocab.txt or the Hub (hub_folder.py)
vocabulary_training.py  `train_wordpiece`
vocabulary_report.py    fertility, [UNK] rate, what normalising drops
folder.py, arguments.py what tokenizer/train.py writes and what it can be told
======================  ======================================================================

All text of this project goes through this package: the corpus store, the data for fine-tuning, predictions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from bert_recipes.tokenization.bert_tokenizer import SPECIAL_TOKENS, OriginalBertTokenizer
    from bert_recipes.tokenization.loading import load_tokenizer
    from bert_recipes.tokenization.normalization import normalize_text
    from bert_recipes.tokenization.vocabulary_report import TokenizerReport
    from bert_recipes.tokenization.vocabulary_training import train_wordpiece

# public name -> module that is imported when the name is first used: a process that only encodes needs no transformers
_HOMES = {
    "SPECIAL_TOKENS": "bert_tokenizer",
    "OriginalBertTokenizer": "bert_tokenizer",
    "TokenizerReport": "vocabulary_report",
    "load_tokenizer": "loading",
    "normalize_text": "normalization",
    "train_wordpiece": "vocabulary_training",
}

__all__ = [
    "SPECIAL_TOKENS",
    "OriginalBertTokenizer",
    "TokenizerReport",
    "load_tokenizer",
    "normalize_text",
    "train_wordpiece",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_recipes.tokenization' has no attribute '{name}'")
    return getattr(import_module(f"bert_recipes.tokenization.{_HOMES[name]}"), name)
