"""Text to WordPiece ids as in google-research/bert, and training of vocabularies.

======================  ======================================================================
file                    what it holds
======================  ======================================================================
normalization.py        the original's BasicTokenizer on whole strings; `normalize_text`
wordpiece.py            the original's WordpieceTokenizer with a memory of words
bert_tokenizer.py       `OriginalBertTokenizer`: both behind Hugging Face's interface
alignment.py            offsets in the caller's text
loading.py              `load_tokenizer`: from a folder, a vocab.txt or the Hub (hub_folder.py)
vocabulary_training.py  `train_wordpiece`
vocabulary_report.py    fertility, [UNK] rate, what normalising drops
folder.py, arguments.py what tokenizer/train.py writes and what it can be told
======================  ======================================================================

All text of this project goes through this package: the corpus store, the data for fine-tuning, predictions.
"""

from bert_recipes.tokenization.bert_tokenizer import SPECIAL_TOKENS, OriginalBertTokenizer
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.normalization import normalize_text
from bert_recipes.tokenization.vocabulary_report import TokenizerReport
from bert_recipes.tokenization.vocabulary_training import train_wordpiece


__all__ = [
    "SPECIAL_TOKENS",
    "OriginalBertTokenizer",
    "TokenizerReport",
    "load_tokenizer",
    "normalize_text",
    "train_wordpiece",
]
