"""Split a paragraph into its sentences by rules, and recognize passages of running text.

The rules need no model and no language setting. What they cannot know without one: German ordinals
before other words than months and centuries ("der 1. FC") are split, and a name after a full stop
that closes an unlisted abbreviation starts a new sentence.
"""

import re
import unicodedata

from bert_recipes.scripts import CJK_TERMINATORS, OWN_STOPS, UNSPACED_CHARACTER


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name or another word always follows.
NEVER_LAST = _words(
    """
    mr mrs ms messrs mme mmes mlle mssrs dr drs prof profs rev revd hon pres gov sen rep ste mt
    ft gen col lt maj capt cpt cmdr comdr adm sgt cpl pvt pte brig insp supt det fr msgr esqs viz vs
    cf approx ca circa incl esp resp ed eds trans repr hr frl bzw bspw vgl evtl ggf inkl sra srta
    dra dna vda lic ing arq mgr ald atty amb bp e.g i.e z.b d.h u.a p.ex p.ej mrd mio tsd sog ehem
    geb
    \u0921\u0949 \u092a\u094d\u0930\u094b \u092a\u0902 \u0936\u094d\u0930\u0940
    """
)

# Those of them that are words where they begin small: Danish and Norwegian "it", Turkish "you",
# Italian "my".
_ONLY_CAPITALIZED = _words("det sen mio")

# German ordinals stand before these: "am 3. Oktober", "im 19. Jahrhundert".
AFTER_ORDINALS = _words(
    """
    januar j\u00e4nner februar m\u00e4rz april mai juni juli august september oktober november
    dezember jan feb m\u00e4r mrz apr jun jul aug sep sept okt nov dez jh jhd jahrhundert
    jahrhunderts weltkrieg weltkriegs
    """
)

# A number follows: "No. 5", "Fig. 2", "Vol. IV". Without one the word is a word, or ends its
# sentence.
BEFORE_NUMBERS = _words(
    """
    no nos nr num fig figs sec sect vol vols ch chap chaps p pp pg art arts eq eqs op bk par para pt
    pts ver vs tab app cap lib fol ex col cols line lines abs nn n\u00ba n\u00b0 jan feb mar apr jun
    jul aug sep sept oct okt nov dec dez m\u00e4r mrz kap
    """
)

# Both happen: the sentence ends here only if the next word is one that begins sentences.
SOMETIMES_LAST = _words(
    """
    st etc inc ltd co corp bros jr sr esq al ibid dept univ assn est min max ave blvd rd tel ext
    mass calif conn penn a.m p.m u.s u.k u.n u.s.a u.s.s.r e.u d.c ph.d b.a m.a m.d b.c a.d b.c.e
    usw
    """
)

# The words that most often begin an English sentence and are seldom names.
SENTENCE_STARTERS = _words(
    """
    the a an this that these those it its he she they we i you his her their our my your there here
    in on at by for from of to with as after before when while where since until if but and or so
    yet nor then thus however although though because what who which why how not no yes now once
    some many most all each every both another other one two three it's he's she's i'm that's
    there's don't let's did do does is was were are has had have can could will would should may
    might must during under over among between despite unlike besides also even only perhaps instead
    meanwhile moreover nevertheless still again today yesterday tomorrow soon later
    """
)


# Arabic question mark and Urdu full stop, ellipsis: like ? and . they need a space after them.
_SPACED_TERMINATORS = ".!?\u2026\u061f\u06d4"
_ASCII_CLOSERS = "\"')\\]}"
_CLOSERS = _ASCII_CLOSERS + "\u2019\u201d\u00bb\u203a\u300d\u300f\uff09\u3011\u300b\u3009\uff02"
# German closes with what opens in English, French and Chinese: only a space tells them apart.
_CLOSERS_BEFORE_SPACE = _CLOSERS + "\u201c\u2018\u00ab\u2039"
_ASCII_OPENERS = "\"'([{*_-"
_OPENERS = (
    _ASCII_OPENERS
    + "\u2018\u201c\u201e\u201a\u00ab\u2039\u00bf\u00a1\u2013\u2014\u2015\u300c\u300e\uff08"
)

# Two patterns for the same thing: the one for pure ASCII scans several times as fast. A run of
# terminators is taken as a whole or not at all (lookbehind, possessive quantifiers), so that a
# megabyte of dots costs a megabyte's time.
_ASCII_CANDIDATE = re.compile(rf"[.!?](?<![.!?][.!?])[.!?]*+[{_ASCII_CLOSERS}]*+\s++")
_STOP = rf"[{_SPACED_TERMINATORS}]"
# Full-width: beside digits a decimal point, and after Latin letters part of an abbreviation.
_WIDE_STOP = "\uff0e"
_DIGIT_OR_LATIN = re.compile(r"[0-9A-Za-z\uff10-\uff19\uff21-\uff3a\uff41-\uff5a]")
_UNSPACED = CJK_TERMINATORS + OWN_STOPS + _WIDE_STOP
_CANDIDATE = re.compile(
    rf"{_STOP}(?<!{_STOP}{_STOP}){_STOP}*+[{_CLOSERS_BEFORE_SPACE}]*+\s++"
    rf"|[{_UNSPACED}][{_UNSPACED}!?]*+[{_CLOSERS}]*+\s*+"
    # Two word separators of Amharic, as many type its full stop.
    rf"|\u1361\u1361[{_CLOSERS}]*+\s*+"
)
_SHORTENED = re.compile(r"['\u2018\u2019][nstk]\s+(\w)")
_NEXT_WORD = re.compile(rf"[{re.escape(_OPENERS)}\s]*((?:[^\W_]|')*)")
# A comma, a semicolon, a colon: the sentence goes on.
_CJK_CONTINUATIONS = "\u3001\uff0c,\uff1b\uff1a"
# Japanese "to", after a closing quote: "..." ("he said"). Without one many a sentence begins so.
_QUOTED = "\u3068"
_KOREAN_LETTERS = "가나다라마바사아자차카타파하"
_ROMAN = re.compile(r"[IVXLCDM]+")
# The pronoun, not the number: "He said no. I left.", but "opus no. I in C", "no. I and no. II".
# A verb follows it, in lower case or shortened ("I'm"); after the number stands what joins it to
# other words.
_AFTER_NUMBER = "and|as|at|by|for|from|has|in|is|of|on|or|the|to|with"
_PRONOUN = re.compile(rf"[{re.escape(_OPENERS)}]*I(?:['\u2019]|\s+(?!(?:{_AFTER_NUMBER})\b)[a-z])")
# "u.s.s.r", "messrs": longer words need no look-up. Also the bound that keeps looking back cheap.
_LONGEST_ABBREVIATION = 8
# Before the number of an enumeration ("1. Apples") there are at most this many quotes, brackets and
# spaces; the number has at most this many characters ("1984", "XVII").
_MAX_OPENERS = 3
_LONGEST_ENUMERATOR = 4
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences.

    Every character but the spaces between sentences stays as it is. A sentence ends at `. ! ?` or
    an ellipsis, with the closing quotes and brackets after it, when white space follows and the
    next word does not begin in lower case; not after titles, initials, enumerations and other
    abbreviations. Also at the Arabic question mark and the Urdu full stop, and, without a space, at
    the danda, the full stops of other scripts and those of CJK.

    Returns:
        The sentences in order, stripped, none of them empty; [] for blank text.

    Example:
        >>> split_sentences('Mr. Poe paid $3.50. "Why?" he asked.')
        ['Mr. Poe paid $3.50.', '"Why?" he asked.']
    """
    sentences = []
    begin = 0
    candidates = _ASCII_CANDIDATE if paragraph.isascii() else _CANDIDATE

    for match in candidates.finditer(paragraph):
        end = match.end()
        if end < len(paragraph) and _is_boundary(paragraph, begin, match.start(), end):
            sentences.append(paragraph[begin:end].strip())
            begin = end

    last_sentence = paragraph[begin:].strip()
    if last_sentence:
        sentences.append(last_sentence)
    return sentences


def _is_boundary(text: str, begin: int, terminator: int, end: int) -> bool:
    """Return whether a sentence ends at a candidate.

    Args:
        text: The paragraph.
        begin: Where the sentence begins.
        terminator: Position of the candidate's first character.
        end: Where the next sentence would begin.
    """
    first = text[terminator]
    following = text[end]
    if first == _WIDE_STOP:
        before = text[max(terminator - 1, 0) : terminator]
        if following.isdigit() or _DIGIT_OR_LATIN.fullmatch(before):
            return False
    if first in CJK_TERMINATORS or first == _WIDE_STOP:
        if following == _QUOTED:
            return not any(char in _CLOSERS for char in text[terminator:end])
        return following not in _CJK_CONTINUATIONS
    if first in OWN_STOPS:
        if following in OWN_STOPS:  # Tibetan has two, with a space between them
            return False
        # Verse numbers stand between two of them: no cut inside.
        return text[end - 1].isspace() or not following.isdigit()
    if begins_small(following):
        return False
    # After an opening quote or bracket.
    if not following.isupper() and begins_small(_next_word(text, end)):
        # The capital is behind a shortened word: Afrikaans "'n Man", Dutch "'s Avonds".
        shortened = _SHORTENED.match(text, end)
        if shortened is None or not shortened.group(1).isupper():
            return False
    # Only a single full stop with nothing but space after it can belong to an abbreviation.
    if first != "." or not text[terminator + 1].isspace():
        return True
    return not _ends_in_abbreviation(text, begin, terminator, end)


def begins_small(text: str) -> bool:
    """Return whether a text begins with a small letter, where sentences begin with capitals.

    Georgian letters are small to Unicode, and their capitals begin no sentence.
    """
    return text[:1].islower() and not "\u10d0" <= text[:1] <= "\u10ff"


def _next_word(text: str, begin: int) -> str:
    match = _NEXT_WORD.match(text, begin)
    assert match is not None  # the word may be empty
    return match.group(1)


def _ends_in_abbreviation(text: str, begin: int, stop: int, end: int) -> bool:
    """Return whether a full stop belongs to the word before it and the sentence goes on.

    Args:
        text: The paragraph.
        begin: Where the sentence begins.
        stop: Position of the full stop.
        end: Where the next sentence would begin.
    """
    # Room for the abbreviation and for the end of the word before it.
    window_begin = max(begin, stop - 2 * _LONGEST_ABBREVIATION)
    words = ["", *text[window_begin:stop].split()]
    word = words[-1].lstrip(_OPENERS)
    if len(word) > _LONGEST_ABBREVIATION or not word:
        return False
    if len(word) == 1 and "\uac00" <= word <= "\ud7a3":
        # A Korean syllable is a word, or counts as a letter does.
        return word in _KOREAN_LETTERS and _begins_sentence(text, begin, stop - 1)
    if len(word) == 1 and word.isalpha():
        return not _is_word_of_one_letter(word, words[-2])
    if word.isdigit() or _ROMAN.fullmatch(word):
        # An enumeration ("1. Apples") has nothing before its number.
        # "No. 1. August 1983" has no ordinal.
        may_be_ordinal = word.isdigit() and len(word) <= 2 and not words[-2].endswith(".")
        if may_be_ordinal and _next_word(text, end).lower() in AFTER_ORDINALS:
            return True
        begins_sentence = _begins_sentence(text, begin, stop - len(word))
        return begins_sentence and len(word) <= _LONGEST_ENUMERATOR
    return _is_abbreviation(word, text, end)


def _is_word_of_one_letter(letter: str, before: str) -> bool:
    """Return whether a letter behind the word `before` is a word, and no initial.

    The English pronoun is one in "taller than I.", and not in "George I. Smith"; so is a vowel with
    an accent, as in Irish and Vietnamese.
    """
    if letter == "I":
        return before.islower()
    base = unicodedata.normalize("NFD", letter)[0]
    return base != letter and base in "aeiouy" and before[-1:].isalpha()


def _begins_sentence(text: str, begin: int, place: int) -> bool:
    """Return whether nothing but quotes and brackets stands before a place of a sentence."""
    before = text[begin:place]
    return len(before) <= _MAX_OPENERS and not before.strip(_OPENERS + " ")


def _is_abbreviation(word: str, text: str, end: int) -> bool:
    """Return whether a word is an abbreviation in front of the next word, at `end`."""
    lowered = word.lower()
    is_dotted = _DOTTED.fullmatch(word) is not None
    if lowered in NEVER_LAST and word not in _ONLY_CAPITALIZED:
        return True
    if is_dotted and word.islower() and lowered not in SOMETIMES_LAST:
        return True
    if lowered in BEFORE_NUMBERS:
        if word == "no" and _PRONOUN.match(text, end):
            return False
        next_word = _next_word(text, end)
        return next_word.isdigit() or _ROMAN.fullmatch(next_word) is not None
    if is_dotted or lowered in SOMETIMES_LAST:
        return _next_word(text, end).lower() not in SENTENCE_STARTERS
    return False


# Our own rule for "extract only the text passages": see is_passage.
MIN_PASSAGE_WORDS = 8
_LIST_MARKS = ("*", "#", "|", "-", "\u2022", "\u2013", "=", "!", ":", ";", "{", "<")
_PASSAGE_END = re.compile(
    rf"(?:[{_SPACED_TERMINATORS}{_UNSPACED}]|\u1361\u1361)[{_CLOSERS_BEFORE_SPACE}]*$"
)
# Thai and Lao have no full stop. After the last letter stand at most a year ("B.E. 2563"), a
# number, and closing quotes and brackets.
_END_WITHOUT_STOP = re.compile(rf"[\u0e00-\u0eff][\s0-9.({_CLOSERS}]*$")
_SCRIPT_WITHOUT_STOPS = re.compile("[\u0e00-\u0eff]")
# Without a stop only the length separates a passage from a heading, so more is asked for: twice
# the words, of some four characters each (vowel signs and tone marks included).
MIN_UNSTOPPED_CHARACTERS = 2 * MIN_PASSAGE_WORDS * 4


def is_passage(paragraph: str) -> bool:
    """Return whether a paragraph is running text, not a heading, list or table.

    A passage ends like a sentence, has at least ``MIN_PASSAGE_WORDS`` words (two characters of a
    script without spaces count as one), and does not begin with a mark of lists or tables. One that
    ends in Thai or Lao, without a stop, has at least ``MIN_UNSTOPPED_CHARACTERS`` of them.

    Source: the aim is the paper's ("we extract only the text passages and ignore lists, tables, and
    headers", Devlin et al. 2019, section 3.1). It gives no rule: this one is ours.
    """
    text = paragraph.strip()
    if text.startswith(_LIST_MARKS):
        return False
    if not _PASSAGE_END.search(text):
        if not _END_WITHOUT_STOP.search(text):
            return False
        return len(_SCRIPT_WITHOUT_STOPS.findall(text)) >= MIN_UNSTOPPED_CHARACTERS
    num_words = len(text.split())
    num_unspaced_words = len(UNSPACED_CHARACTER.findall(text)) // 2
    return num_words + num_unspaced_words >= MIN_PASSAGE_WORDS
