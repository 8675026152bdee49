"""How a text is cut into WordPieces."""

from __future__ import annotations

from dataclasses import dataclass

from bert_recipes.tokenization import OriginalBertTokenizer


@dataclass(frozen=True)
class Piece:
    """One piece.

    Attributes:
        piece: As it stands in the vocabulary; "##" before one that continues a word.
        piece_id: Its number there.
        start, end: Half-open span of characters of the text that it was made from; both 0 where there is none.
        is_unknown: Stands for a word that cannot be made of the vocabulary's pieces.
    """

    piece: str
    piece_id: int
    start: int
    end: int
    is_unknown: bool


@dataclass(frozen=True)
class CutText:
    """A text and its pieces.

    Attributes:
        text: As it was given.
        words: As the tokenizer normalises them, before they are cut.
        pieces: In their order; neither [CLS] nor [SEP].
    """

    text: str
    words: list[str]
    pieces: list[Piece]


def cut_text(tokenizer: OriginalBertTokenizer, text: str) -> CutText:
    """Cut a text, of any length.

    Args:
        tokenizer: Ours.
        text: "[MASK]" and the like in it are text like any other.
    """
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids = encoded["input_ids"]
    pieces = [
        Piece(piece, piece_id, start, end, piece_id == tokenizer.unk_token_id)
        for piece, piece_id, (start, end) in zip(
            tokenizer.convert_ids_to_tokens(ids), ids, encoded["offset_mapping"], strict=True
        )
    ]
    return CutText(text, tokenizer.normalize(text).split(), pieces)
