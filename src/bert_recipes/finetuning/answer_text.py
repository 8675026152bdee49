"""From pieces back to the words that stand in the paragraph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bert_recipes.finetuning.squad_windows import EncodedContext, split_words
from bert_recipes.tokenization import OriginalBertTokenizer


def join_pieces(pieces: Sequence[str]) -> str:
    """Pieces -> words in the tokenizer's normal form: ["steve", "sm", "##ith"] -> "steve smith".

    Source: google-research/bert run_squad.py `write_predictions`.
    """
    return " ".join(" ".join(pieces).replace(" ##", "").replace("##", "").split())


def realign(predicted: str, original: str, normalized: str) -> str:
    """Find the characters of the original text that a predicted text was made of.

    Case and accents are gone from the prediction, and the original's words may hold more than was predicted: for
    "steve smith" in "Steve Smith's" the answer is "Steve Smith". Without their spaces the original and its normal form
    are laid side by side, character by character; where their lengths differ, or the prediction is not in the normal
    form (it holds [UNK], for example), the whole original is the answer.

    Args:
        predicted: What `join_pieces` returned.
        original: The paragraph's words from which the pieces were cut, one space between them.
        normalized: The words that the tokenizer makes of `original`, one space between them.

    Source: google-research/bert run_squad.py `get_final_text`.
    """
    start = normalized.find(predicted)
    if start == -1 or not predicted:
        return original
    characters = [index for index, character in enumerate(original) if character != " "]
    if len(characters) != len(normalized) - normalized.count(" "):
        return original
    # Neither end of the prediction is a space, so both have a partner.
    first = start - normalized.count(" ", 0, start)
    length = len(predicted) - predicted.count(" ")
    return original[characters[first] : characters[first + length - 1] + 1]


class AnswerTexts:
    """The final texts of a paragraph's spans; what candidates have in common is computed once.

    Args:
        text: The paragraph.
        context: The same, encoded.
        pieces: Piece of each id.
        normalize: Text -> the string whose words the tokenizer cuts into pieces.
    """

    def __init__(
        self, text: str, context: EncodedContext, pieces: Sequence[str], normalize: Callable[[str], str]
    ) -> None:
        """Remember the paragraph; nothing is computed yet."""
        self._words = split_words(text)
        self._context = context
        self._pieces = pieces
        self._normalize = normalize
        self._originals: dict[tuple[int, int], tuple[str, str]] = {}

    def __call__(self, start: int, end: int) -> str:
        """The text of the pieces from start to end of the paragraph, as it stands there."""
        predicted = join_pieces([self._pieces[i] for i in self._context.piece_ids[start : end + 1].tolist()])
        words = (int(self._context.word_of_piece[start]), int(self._context.word_of_piece[end]))
        if words not in self._originals:
            original = " ".join(self._words[words[0] : words[1] + 1])
            self._originals[words] = original, " ".join(self._normalize(original).split())
        return realign(predicted, *self._originals[words])


class OffsetTexts:
    """A paragraph's spans as slices between the tokenizer's character offsets, as today's Hugging Face example takes them.

    Args:
        text: The paragraph.
        context: The same, encoded.
        tokenizer: The model's.
    """

    def __init__(self, text: str, context: EncodedContext, tokenizer: OriginalBertTokenizer) -> None:
        self._text = text
        encoded = tokenizer(split_words(text), add_special_tokens=False, return_offsets_mapping=True)
        starts = context.word_starts.tolist()
        self._offsets = [
            (start + first, start + last)
            for start, offsets in zip(starts, encoded["offset_mapping"], strict=True)
            for first, last in offsets
        ]
        assert len(self._offsets) == len(context.piece_ids)

    def __call__(self, start: int, end: int) -> str:
        """The text from the first character of one piece to the last of the other."""
        return self._text[self._offsets[start][0] : self._offsets[end][1]]
