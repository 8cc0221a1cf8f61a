"""Words that count as the same."""

import pytest

from allocembed.search.said.words import content_words, words


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("Die TÜREN der Straße", "türen strasse"),
        ("Übermut", "ubermut"),
        ("un élève naïf", "eleve naif"),
        ("Привет, мир!", "привет МИР"),
        ("我们明天去北京", "北京"),
        ("東京タワーに行きました", "タワー"),
        ("안녕하세요 여러분", "여러분"),
        ("สวัสดีครับ", "สวัสดี"),
        ("الْعَرَبِيَّة", "العربية"),
        ("यह किताब है", "किताब"),
        ("இது தமிழ்", "தமிழ்"),
        ("two cars", "car"),
        ("ﬁne １２", "fine 12"),
    ],
)
def test_words_are_found_in_any_script_without_accents_and_case(said, asked):
    assert set(content_words(asked)) <= set(words(said))


def test_vowel_signs_tell_words_apart():
    assert not set(words("किताब")) & set(words("क त ब")) and not set(words("มี")) & set(words("ม"))


def test_no_word_is_longer_than_the_index_keeps():
    assert max(map(len, words("a" * 1000 + " " + "走" * 1000))) <= 40


def test_nothing_but_signs_has_no_words():
    assert words("♪ … -- \u202e 🐕 ❤️") == [] == content_words("")
