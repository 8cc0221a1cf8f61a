"""Finding videos in folders, and telling them by their content; cutting long ones into windows."""

import numpy as np
import pytest

from allocembed.frames import DecodeLimits
from allocembed.search import SearchError, segments
from allocembed.search import cut as cutting
from allocembed.search.cut import cut
from allocembed.search.files import BLOCK, BLOCKS, find_videos, fingerprint
from allocembed.video import sample
from tests.clips import LONG_GROUPS, read_all, write_video


def test_a_folder_gives_its_videos_in_order_without_hidden_ones(tmp_path):
    for name in ("b/two.mkv", "a.mp4", ".hidden/three.mp4", ".four.mp4", "notes.txt", "b/it's five ☃.MOV"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "broken.mp4").symlink_to(tmp_path / "nothing")
    (tmp_path / "b" / "around").symlink_to(tmp_path)
    found, unread = find_videos([tmp_path, tmp_path / "b"])
    names = {each.path.removeprefix(f"{tmp_path}/"): each.dangling for each in found}
    assert not unread and list(names) == ["a.mp4", "broken.mp4", "b/it's five ☃.MOV", "b/two.mkv"]
    assert [name for name, dangling in names.items() if dangling] == ["broken.mp4"]
    assert len(find_videos([tmp_path / "notes.txt"])[0]) == 1, "a file that is named is taken whatever its suffix"
    with pytest.raises(SearchError, match="no such file"):
        find_videos([tmp_path / "nowhere"])


@pytest.mark.parametrize("size", [0, 10, BLOCK * BLOCKS, BLOCK * BLOCKS + 1, 9_000_000])
def test_a_fingerprint_follows_the_content_and_not_the_name(tmp_path, size):
    one, two = tmp_path / "one", tmp_path / "two"
    content = np.random.default_rng(0).bytes(size)
    one.write_bytes(content)
    two.write_bytes(content)
    assert fingerprint(one) == fingerprint(two) and len(fingerprint(one)) == 32
    two.write_bytes(content + b"x")
    assert fingerprint(one) != fingerprint(two)
    if size:
        two.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert fingerprint(one) != fingerprint(two)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
@pytest.mark.parametrize("windows", [2, 5])
def test_windows_hold_the_very_frames_they_say(tmp_path, name, windows):
    path = write_video(tmp_path / name, 90, options=LONG_GROUPS)
    pictures, times = read_all(path)
    clips = list(segments.read_windows(path, sample(path, 4), windows, 3, "exact", DecodeLimits()))
    assert len(clips) == windows
    for number, clip in enumerate(clips):
        low, high = (place * len(pictures) / windows for place in (number, number + 1))
        assert len(clip) == 3 and np.all((clip.indices >= int(low)) & (clip.indices < high))
        assert np.array_equal(clip.frames, pictures[clip.indices])
        assert np.allclose(clip.times, np.array(times)[clip.indices], atol=1e-3)


def test_windows_of_a_file_without_timestamps_are_counted_out(tmp_path):
    path = write_video(tmp_path / "raw.h264", 60, options={"bf": "0"})
    pictures, _ = read_all(path)
    clips = list(segments.read_windows(path, sample(path, 4), 3, 2, "exact", DecodeLimits()))
    assert [clip.indices.tolist() for clip in clips] == [[5, 15], [25, 35], [45, 55]]
    assert all(np.array_equal(clip.frames, pictures[clip.indices]) for clip in clips)


def test_windows_by_keyframe_take_keyframes(tmp_path):
    path = write_video(tmp_path / "a.mp4", 200, options={"g": "10", "bf": "0", "sc_threshold": "0"})
    pictures, _ = read_all(path)
    clips = list(segments.read_windows(path, sample(path, 4, seek="keyframe"), 4, 2, "keyframe", DecodeLimits()))
    assert all(index % 10 == 0 for clip in clips for index in clip.indices.tolist())
    assert all(np.array_equal(clip.frames, pictures[clip.indices]) for clip in clips)


@pytest.mark.parametrize("bad", ["", "sometimes", "-3", "0.1", "nan", "inf"])
def test_segments_that_mean_nothing_are_refused(bad):
    with pytest.raises(SearchError, match="as in --segments 30"):
        segments.parse_segments(bad)


@pytest.mark.parametrize("name", ["a.mp4", "a.m4v", "a.mov", "a.mkv", "a.avi"])
def test_a_cut_begins_at_the_keyframe_before_and_is_not_re_encoded(tmp_path, name):
    path = write_video(tmp_path / name, 100, options={"g": "20", "bf": "0", "sc_threshold": "0"})
    pictures, _ = read_all(path)
    made, begin = cut(path, 1.8, 3.0, tmp_path / "out", "one")
    assert abs(begin - 1.6) < 0.05, "frame 40 of 25 a second is the keyframe before 1.8 s"
    copied, times = read_all(made)
    assert np.array_equal(copied, pictures[40 : 40 + len(copied)]), "the pixels are those of the source"
    assert 75 <= 40 + len(copied) <= 78 and times[0] == 0
    assert [each.name for each in (tmp_path / "out").iterdir()] == [made.name], "no scratch is left"


def test_two_cuts_to_the_same_place_at_once_do_not_clash(tmp_path, monkeypatch):
    path = write_video(tmp_path / "a.mp4", 100, options={"g": "20", "bf": "0", "sc_threshold": "0"})
    out = tmp_path / "out"
    copy, other = cutting._copy, []

    def overtaken(*given):
        begin = copy(*given)
        if not other:
            other.append(True)
            cut(path, 0, 4, out, "one")
        return begin

    monkeypatch.setattr(cutting, "_copy", overtaken)
    made, begin = cut(path, 1.8, 3.0, out, "one")
    assert abs(begin - 1.6) < 0.05 and len(read_all(made)[0]) < 50, "the last to finish wins"
    assert list(out.iterdir()) == [made]


def test_a_cut_that_fails_says_so_and_leaves_the_old_one(tmp_path):
    (tmp_path / "a.mp4").write_text("no video")
    (tmp_path / "one.mp4").write_text("old")
    with pytest.raises(SearchError, match=r"could not be cut \(Invalid data.*: check the file, and the space for"):
        cut(tmp_path / "a.mp4", 0, 1, tmp_path, "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "one.mp4"]
    assert (tmp_path / "one.mp4").read_text() == "old"


def test_a_cut_of_a_file_that_is_gone_says_so(tmp_path):
    with pytest.raises(SearchError, match="is gone"):
        cut(tmp_path / "a.mp4", 0, 1, tmp_path, "one")
