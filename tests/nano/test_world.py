"""The world: what is drawn, what is said about it and what is seen of it agree."""

import random
import re
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from allocembed_nano import world
from allocembed_nano.world import vocabulary as vocab
from allocembed_nano.world.text import KINDS, MOMENTS, REMEMBERED_EVENTS
from allocembed_nano.world.timeline import EVENT_SLOTS, LONG_SIDE, PLATE_HEIGHT, Scene, slots_at


def middle(batch: world.Timelines, video: int, event: int) -> float:
    return sum(batch.moment(video, event)) / 2 / float(batch.duration[video])


def same(one: world.Timelines, two: world.Timelines) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))


def only(batch: world.Timelines, scene: Scene) -> tuple[int, float]:
    """A video and the middle of one of its slots that shows `scene`."""
    length = batch.end - batch.start
    video, slot = np.argwhere((batch.scene == scene) & (length > 0.01))[0]
    return int(video), float((batch.start + batch.end)[video, slot] / 2)


def test_the_vocabulary_has_no_ambiguous_names():
    assert len(vocab.OBJECTS) == 160 and len(set(vocab.WORDS)) == 256
    assert len(vocab.COLOURS) == 9 and len(vocab.PLACES) == 8
    spoken = {part for name in (*vocab.OBJECTS, *vocab.COLOURS, *vocab.PLACES) for part in name.split()}
    assert not spoken & {word.lower() for word in (*vocab.WORDS, *vocab.FILLER_WORDS)}
    assert not set(vocab.FILLER_OBJECTS) & set(vocab.OBJECTS)
    assert not set(vocab.FILLER_WORDS) & set(vocab.WORDS)


def test_no_two_object_sprites_look_alike():
    sprites = world.load_atlas().objects[: len(vocab.OBJECTS), None, 4:-4, 4:-4].float()
    small = F.interpolate(sprites, size=(24, 24), mode="area").flatten(1)
    correlation = torch.corrcoef(small).fill_diagonal_(0)
    assert correlation.max() < 0.87


@pytest.mark.parametrize("kind", ["short", "long"])
def test_equal_seeds_give_equal_videos_and_frames_and_other_seeds_do_not(kind):
    one, two, other = (world.draw(4, seed=seed, kind=kind, orientation="mixed") for seed in (5, 5, 6))
    assert same(one, two) and not same(one, other)
    assert not same(one, world.draw(4, seed=5, kind=kind, orientation="mixed", split="test"))
    upright = [batch.select(batch.portrait) for batch in (one, two)]
    frames = [world.render(batch, world.sample_fractions(3)) for batch in upright]
    assert torch.equal(*frames)
    texts = [world.describe_video(one, 0, random.Random(seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_frame_does_not_depend_on_the_rest_of_its_batch():
    batch = world.draw(6, seed=2)
    fractions = world.sample_fractions(8)
    together = world.render(batch, fractions, chunk=7)
    assert torch.equal(together[3:4, 5:6], world.render(batch.select([3]), fractions[5:6]))


def test_slots_cover_each_video_and_events_follow_the_config():
    for kind, config in (("short", world.SHORT), ("long", world.LONG)):
        batch = world.draw(300, seed=0, kind=kind)
        length = batch.end - batch.start
        assert np.all(length >= 0) and np.allclose(batch.end[:, -1], 1)
        low, high = config.event_length
        for video in range(len(batch)):
            events = length[video, EVENT_SLOTS]
            count = batch.events[video]
            assert config.events[0] <= count <= config.events[1]
            assert np.all((events[:count] >= low - 1e-6) & (events[:count] <= high + 1e-6))
            assert np.all(events[count:] < 1e-9)
        assert np.all((batch.duration >= config.duration[0]) & (batch.duration <= config.duration[1]))


def test_held_out_combinations_appear_only_in_the_test_split():
    def unseen(split: str) -> tuple[float, float]:
        batch = world.draw(500, seed=0, split=split)
        objects, colours, words = (values[:, EVENT_SLOTS[:4]] for values in (batch.object, batch.colour, batch.word))
        return (
            1 - vocab.SEEN_OBJECT_COLOUR[objects, colours].mean(),
            1 - vocab.SEEN_OBJECT_WORD[objects, words].mean(),
        )

    assert unseen("train") == (0, 0)
    assert all(0.08 < share < 0.16 for share in unseen("test"))


@pytest.mark.parametrize("orientation", ["landscape", "portrait"])
def test_objects_and_signs_stay_in_the_frame_and_apart(orientation):
    batch = world.draw(500, seed=1, orientation=orientation)
    width, height = (LONG_SIDE, 1) if orientation == "landscape" else (1, LONG_SIDE)
    slots = EVENT_SLOTS[:4]
    letters = np.array([len(word) for word in vocab.WORDS])[batch.word[:, slots]]
    word_x, word_y, high = batch.word_x[:, slots], batch.word_y[:, slots], batch.word_size[:, slots]
    half_word_x, half_word_y = letters * high / 2, PLATE_HEIGHT * high / 2
    half = batch.object_size[:, slots] / 2
    for step in (-0.5, 0.5):
        x = batch.object_x[:, slots] + step * batch.drift_x[:, slots]
        y = batch.object_y[:, slots] + step * batch.drift_y[:, slots]
        assert np.all((x > half) & (x < width - half) & (y > half) & (y < height - half))
        apart = (np.abs(x - word_x) > half + half_word_x) | (np.abs(y - word_y) > half + half_word_y)
        assert apart.all()
    assert np.all((word_x > half_word_x) & (word_x < width - half_word_x))
    assert np.all((word_y > half_word_y) & (word_y < height - half_word_y))


def test_objects_and_words_are_distinct_within_a_video():
    batch = world.draw(200, seed=4)
    for video in range(len(batch)):
        slots = EVENT_SLOTS[: batch.events[video]]
        assert len(set(batch.object[video, slots])) == len(set(batch.word[video, slots])) == len(slots)


def test_select_and_concat_undo_each_other_across_kinds():
    short, long = world.draw(2, seed=0), world.draw(3, seed=0, kind="long")
    both = world.concat([short, long])
    assert same(both.select([0, 1]), short) and same(both.select([2, 3, 4]), long)


def test_events_are_reported_exactly_while_they_last():
    batch = world.draw(3, seed=8)
    for video in range(3):
        for event in range(int(batch.events[video])):
            start, end = (second / float(batch.duration[video]) for second in batch.moment(video, event))
            inside = np.array([start + 1e-6, (start + end) / 2, end - 1e-6])
            assert np.all(world.events_at(batch, inside)[video] == event)
            assert world.events_at(batch, np.array([start - 1e-6]))[video, 0] != event
    with pytest.raises(IndexError, match="has events 0 to"):
        batch.moment(0, 7)


def test_an_event_is_seen_in_the_middle_of_its_time_in_its_colour():
    batch = world.draw(4, seed=3)
    bare = replace(batch, object=np.full_like(batch.object, -1), word=np.full_like(batch.word, -1))
    for video in range(4):
        one = slice(video, video + 1)
        alone, empty = batch.select(range(*one.indices(4))), bare.select(range(*one.indices(4)))
        for event in range(int(batch.events[video])):
            at = np.array([middle(batch, video, event)])
            shown = world.render(alone, at)[0, 0].float()
            difference = (shown - world.render(empty, at)[0, 0].float()).abs().amax(dim=0)
            assert (difference > 30).float().mean() > 0.005
            colour = vocab.COLOURS[batch.colour[video, EVENT_SLOTS[event]]]
            target = torch.tensor(vocab.COLOUR_VALUES[colour]).view(3, 1, 1)
            assert ((shown - target).abs().amax(dim=0) < 30).sum() > 20


def test_black_is_black_and_blur_is_smooth():
    batch = world.draw(60, seed=0)
    video, at = only(batch, Scene.BLACK)
    assert world.render(batch.select([video]), np.array([at])).max() == 0
    roughness = []
    for scene in (Scene.BLUR, Scene.BUSY):
        video, at = only(batch, scene)
        frame = world.render(batch.select([video]), np.array([at]))[0, 0].float()
        roughness.append((frame[:, 1:] - frame[:, :-1]).abs().mean())
    assert roughness[0] < 5 < roughness[1]


def test_each_orientation_has_its_own_size_and_mixtures_are_refused():
    tall = world.draw(1, seed=0, orientation="portrait")
    assert world.render(tall, np.array([0.5])).shape[-2:] == world.PORTRAIT
    assert world.render(world.draw(1, seed=0), np.array([0.5])).shape[-2:] == world.LANDSCAPE
    with pytest.raises(ValueError, match="does not fit portrait"):
        world.render(tall, np.array([0.5]), size=world.LANDSCAPE)
    with pytest.raises(ValueError, match="mixed orientations"):
        world.render(world.concat([tall, world.draw(1, seed=0)]), np.array([0.5]))


@pytest.mark.parametrize("orientation", ["landscape", "portrait"])
def test_frames_look_the_same_at_every_resolution(orientation):
    batch = world.draw(3, seed=6, orientation=orientation)
    fractions = world.sample_fractions(12)
    small = world.render(batch, fractions).flatten(0, 1).float()
    height, width = small.shape[-2:]
    large = world.render(batch, fractions, size=(2 * height, 2 * width)).flatten(0, 1).float()
    # The noise of the two sizes alone accounts for about 1.
    assert (F.avg_pool2d(large, 2) - small).abs().mean() < 3


def test_descriptions_name_what_is_shown_and_never_a_filler():
    batch = world.draw(60, seed=0, split="test")
    rng = random.Random(0)
    fillers = {word.lower() for word in vocab.FILLER_WORDS}
    for video in range(len(batch)):
        whole = world.describe_video(batch, video, rng)
        assert not fillers & set(whole.lower().replace(",", " ").replace(";", " ").split())
        mentioned = []
        for event in range(int(batch.events[video])):
            slot = EVENT_SLOTS[event]
            thing = f"{vocab.COLOURS[batch.colour[video, slot]]} {vocab.OBJECTS[batch.object[video, slot]]}"
            word = vocab.WORDS[batch.word[video, slot]]
            named = re.search(rf"\b({thing}|(?i:{word}))\b", whole)
            mentioned += [named.start()] if named else []
            text = world.describe_moment(batch, video, event, rng)
            assert thing in text and word.lower() in text.lower()
            phrases = vocab.PLACE_PHRASES[vocab.PLACES[batch.place[video, slot]]]
            assert any(phrase in text for phrase in phrases)
        assert len(mentioned) == REMEMBERED_EVENTS and mentioned == sorted(mentioned)
    assert len(MOMENTS) >= 12


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_has_four_distinct_options_of_which_one_is_right(kind):
    batch = world.draw(40, seed=0)
    rng = random.Random(0)
    right = {
        "colour": lambda slots: [vocab.COLOURS[i] for i in slots],
        "word": lambda slots: [vocab.WORDS[i] for i in slots],
        "object": lambda slots: [vocab.OBJECTS[i] for i in slots],
        "place": lambda slots: [vocab.PLACE_PHRASES[vocab.PLACES[i]][0] for i in slots],
    }
    asked, _, key = kind.split()
    for video in range(len(batch)):
        made = world.question(batch, video, rng, kind=kind)
        slots = EVENT_SLOTS[: batch.events[video]]
        values = right[asked](getattr(batch, asked)[video, slots])
        assert len(set(made.options)) == len(made.options) == 4
        assert made.options[made.answer] == values[made.event]
        others = set(values) - {values[made.event]}
        assert len(others & set(made.options)) == min(1, len(others))
        keys = right[key](getattr(batch, key)[video, slots])
        assert keys[made.event] in made.text and keys.count(keys[made.event]) == 1


def test_the_corpus_covers_the_vocabulary():
    text = " ".join(world.corpus(6000, seed=0))
    for name in (*vocab.OBJECTS, *vocab.COLOURS, *vocab.WORDS, *vocab.PLACES, *"0123456789"):
        assert name in text
    assert "seconds>" in text and "(A)" in text


@pytest.mark.slow
@pytest.mark.nightly
def test_the_bundled_atlas_is_what_the_recipe_draws(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "recipes"))
    from nano_atlas import build_atlas

    drawn, bundled = build_atlas(), world.load_atlas()
    for field in fields(bundled):
        one, other = (getattr(atlas, field.name).float() for atlas in (drawn, bundled))
        assert (one - other).abs().mean() < 0.5, field.name  # versions of the font library differ in single pixels


@pytest.mark.parametrize("rate", [pytest.param(None, marks=pytest.mark.slow), Fraction(1, 2)])
def test_a_written_video_decodes_to_its_length_and_content(tmp_path, rate):
    av = pytest.importorskip("av")
    # Places only: halved colour resolution does not survive a busy texture at this size.
    calm = replace(world.SHORT, duration=(60, 60), mixture={Scene.PLACE: 1.0})
    batch = world.draw(1, seed=2, config=calm)
    size = (72, 96)
    path = world.write_mp4(batch, 0, tmp_path / "world.mp4", size=size, rate=rate)
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.duration / 1e6 == pytest.approx(60, abs=0.1)
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    count = 480 if rate is None else 30
    assert len(frames) == count
    fractions = world.sample_fractions(count)[[0, count // 2]]
    expected = world.render(batch, fractions, size=size)[0].permute(0, 2, 3, 1).numpy()
    for frame, number in zip(expected, (0, count // 2), strict=True):
        assert np.abs(frame.astype(int) - frames[number]).mean() < 12


def test_wrong_arguments_are_named_with_their_alternatives():
    with pytest.raises(ValueError, match="unknown kind 'medium'; choose one of"):
        world.draw(1, seed=0, kind="medium")
    with pytest.raises(ValueError, match="leave no room"):
        replace(world.SHORT, event_length=(0.1, 0.3))


def test_a_slot_is_found_for_the_very_last_frame():
    batch = world.draw(50, seed=0)
    slots = slots_at(batch, np.array([0.0, 1.0]))
    length = batch.end - batch.start
    assert np.all(np.take_along_axis(length, slots, axis=1) > 0)
