"""Right answers are never negatives, everything else is, and draws can be made again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocembed.rdpo.negatives import TextPool, allowed_negatives

CORPUS = TextPool(range(1000), [f"text {i % 900}" for i in range(1000)])


def pools(least: int = 0):
    entries = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["yes", "no", "Yes", "yes ", ""])), min_size=least)
    return entries.map(lambda rows: TextPool([i for i, _ in rows], [text for _, text in rows]))


@settings(max_examples=200, deadline=None)
@given(pools(), pools())
def test_the_mask_is_what_a_plain_loop_says(positives, candidates):
    mask = allowed_negatives(positives, candidates)
    assert mask.shape == (len(positives), len(candidates))
    for b in range(len(positives)):
        for n in range(len(candidates)):
            own_sample = candidates.sample_ids[n] == positives.sample_ids[b]
            same_text = candidates.texts[n] == positives.texts[b]
            assert mask[b, n].item() == (not own_sample and not same_text)


@settings(max_examples=50, deadline=None)
@given(pools(least=1), pools())
def test_a_positive_is_never_its_own_negative(batch, drawn):
    assert not allowed_negatives(batch, batch + drawn).diagonal().any()


def test_each_reason_for_exclusion_is_enough_alone():
    positive = TextPool(["v1"], ["a car"])
    candidates = TextPool(["v1", "v1", "v2", "v2"], ["a car", "a dog", "a car", "a dog"])
    assert allowed_negatives(positive, candidates).tolist() == [[False, False, False, True]]


def test_ids_and_texts_are_not_mixed_up():
    assert allowed_negatives(TextPool(["a"], ["b"]), TextPool(["b"], ["a"])).tolist() == [[True]]


def test_a_draw_depends_on_seed_and_step_alone():
    again = TextPool(list(CORPUS.sample_ids), list(CORPUS.texts))
    first = CORPUS.draw(64, seed=3, step=5)
    assert again.draw(64, seed=3, step=5) == first
    assert CORPUS.draw(64, seed=3, step=6) != first
    assert CORPUS.draw(64, seed=4, step=5) != first
    assert CORPUS.draw(64, seed=5, step=3) != first


def test_a_smaller_draw_is_the_beginning_of_a_larger_one():
    assert CORPUS.draw(64, seed=0, step=0).texts[:16] == CORPUS.draw(16, seed=0, step=0).texts


@settings(max_examples=100, deadline=None)
@given(pools(), st.integers(0, 8), st.integers(0, 2**32 - 1), st.sets(st.sampled_from(["yes", "no", ""])))
def test_a_draw_repeats_no_text_and_keeps_off_the_batch(pool, count, seed, beyond):
    drawn = pool.draw(count, seed=seed, step=1, beyond=beyond)
    available = set(pool.texts) - beyond
    assert len(drawn) == len(set(drawn.texts)) == min(count, len(available))
    assert set(drawn.texts) <= available
    entries = set(zip(pool.sample_ids, pool.texts, strict=True))
    assert set(zip(drawn.sample_ids, drawn.texts, strict=True)) <= entries


def test_over_many_steps_every_text_has_its_turn():
    small = TextPool(range(20), [str(i) for i in range(20)])
    counts = dict.fromkeys(small.texts, 0)
    for step in range(400):
        for text in small.draw(5, seed=0, step=step).texts:
            counts[text] += 1
    assert all(60 < count < 140 for count in counts.values()), "100 each on average"


def test_drawing_nothing_leaves_the_batch_alone():
    batch = TextPool(("v1", "v2"), ("a", "b"))
    assert batch + CORPUS.draw(0, seed=0, step=0) == batch


def test_a_text_without_a_sample_is_refused():
    with pytest.raises(ValueError, match="1 ids and 2 texts"):
        TextPool(["v1"], ["a", "b"])
