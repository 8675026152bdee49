"""WordPiece: cut a word into the longest pieces that the vocabulary holds, remembering every word's result."""

from collections.abc import Mapping


# google-research/bert tokenization.py `WordpieceTokenizer`, max_input_chars_per_word. The `tokenizers` library's default is 100.
MAX_WORD_CHARACTERS = 200
CONTINUATION = "##"

# Words remembered before starting afresh; some 100 MB. English text needs about 200,000 for its first 100 MB.
_CACHE_CAPACITY = 500_000


class WordCache(dict[str, tuple[int, ...]]):
    """Word to the ids of its pieces. Looking up a word cuts it on the first time and remembers the result.

    Natural text repeats its words so much that bulk tokenisation is a dictionary look-up for each word.

    Source: google-research/bert tokenization.py `WordpieceTokenizer.tokenize`; Wu et al. 2016, section 4.1.
    """

    def __init__(self, vocabulary: Mapping[str, int], *, unk_token: str) -> None:
        """Start empty.

        Args:
            vocabulary: piece to id.
            unk_token: the piece that stands for a word that cannot be cut; it is in ``vocabulary``.
        """
        super().__init__()
        prefix = len(CONTINUATION)
        self._first = dict(vocabulary)
        self._inner = {piece[prefix:]: i for piece, i in vocabulary.items() if piece.startswith(CONTINUATION)}
        self._longest = max(map(len, vocabulary), default=0)
        self._unknown = (vocabulary[unk_token],)

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _CACHE_CAPACITY:
            self.clear()
        ids = self._cut(word)
        self[word] = ids
        return ids

    def _cut(self, word: str) -> tuple[int, ...]:
        """Cut one word, greedily from the left, longest piece first."""
        if len(word) > MAX_WORD_CHARACTERS:
            return self._unknown
        ids: list[int] = []
        start = 0
        while start < len(word):
            pieces = self._inner if start else self._first
            for end in range(min(len(word), start + self._longest), start, -1):
                piece_id = pieces.get(word[start:end])
                if piece_id is not None:
                    ids.append(piece_id)
                    start = end
                    break
            else:
                return self._unknown
        return tuple(ids)
