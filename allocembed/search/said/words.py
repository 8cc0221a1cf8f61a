"""Words of lines and of queries, written alike: without case, accents and plural endings, in any script.

Scripts without spaces between words are split into pairs of neighbouring characters, so that a word is found wherever
it stands. The full-text index gets these words and only splits at spaces.
"""

import re
import unicodedata

LONGEST_WORD = 40  # characters; the rest of a longer one does not matter
MARKS = dict.fromkeys(
    # Accents, Hebrew and Arabic vowel signs: many writers leave them out. The last choose how a sign looks.
    [
        *(*range(0x300, 0x370), *range(0x591, 0x5C8), *range(0x610, 0x61B), *range(0x64B, 0x660), 0x670),
        *range(0xFE00, 0xFE10),
    ]
)
UNSPACED = re.compile(
    # Thai, Lao, Myanmar, Khmer, Hangul, Kana, Han.
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3130-\u318f\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
LETTER = re.compile(r"\w")
SIGN = re.compile(r"[^\w\s]|_")


def words(text: str) -> list[str]:
    """The words of a text, in order.

    >>> words("Die Tür der STRASSE, l’été: cars & <b>"), words("走れメロス!"), words("it's a bus")
    (['die', 'tur', 'der', 'strasse', 'l', 'ete', 'car', 'b'], ['走れ', 'れメ', 'メロ', 'ロス'], ['it', 'a', 'bus'])
    >>> words("हिन्दी की किताब"), words("มีน้ำ")
    (['हिन्दी', 'की', 'किताब'], ['มี', 'ีน', 'น้', '้ํ', 'ํา'])
    """
    folded = unicodedata.normalize("NFKD", text.casefold()).translate(MARKS)
    folded = SIGN.sub(_sign, unicodedata.normalize("NFC", folded))
    found: list[str] = []
    for run in filter(LETTER.search, folded.split()):
        rest = 0
        for part in UNSPACED.finditer(run):
            found += _spaced(run[rest : part.start()])
            found += _pairs(part.group())
            rest = part.end()
        found += _spaced(run[rest:])
    return found


def content_words(text: str) -> list[str]:
    """The words of a query, each once, without common ones unless it has no others.

    >>> content_words("the dog jumps into the lake"), content_words("to be or not to be")
    (['dog', 'jump', 'lake'], ['to', 'be', 'or', 'not'])
    """
    found = list(dict.fromkeys(words(text)))
    return [word for word in found if word not in COMMON] or found


def _sign(found: re.Match[str]) -> str:
    """A vowel sign, as of Hindi or Thai, continues its word; other signs end it."""
    return found[0] if unicodedata.category(found[0]) in ("Mn", "Mc") else " "


def _pairs(run: str) -> list[str]:
    return [run] if len(run) == 1 else [run[place : place + 2] for place in range(len(run) - 1)]


def _spaced(word: str) -> list[str]:
    """A word without the ending of a plural, which many languages form with an s."""
    if not word or word == "s":
        return []
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return [word[:LONGEST_WORD]]


# Words that most sentences contain. They are left out of a query that has others.
COMMON = frozenset(
    words(
        """
a an and are as at be but by do for from had has have he her his how i if in is it its me my no not of on or our she so
that the their them there they this to was we were what when where which who will with you your about into
aber als am auch auf aus bei das dass dem den der des die doch ein eine einem einen einer er es für hat ich ihr im ist
man mich mit nicht noch nur oder sich sie sind über um und uns von vor war was wenn wie wir zu zum zur
au aux avec ce cette dans de du elle en est et il je la le les leur lui mais moi ne nous ou par pas pour qu que qui sa
se ses son sur un une vous y como con del el ella era esta este lo los más mi muy nos o para pero por porque si sin su
tu uno al che come da dei della di e gli ho io ma nel non per più sono ti com dos ela ele em essa eu foi isso mas meu
na os seu um uma você een het ik van voor zijn
"""
    )
)
