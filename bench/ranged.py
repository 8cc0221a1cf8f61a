"""Bytes that are fetched for 24 frames of a large file in object storage, against its size: python bench/ranged.py

The file is made of noise, so that its size is real: a few seconds are encoded and repeated to the length of a film. A
proxy in front of moto's server counts the bytes of all answers.
"""

import argparse
import tempfile
import time
from pathlib import Path

import av
import numpy as np

from allocembed.video import open_video
from tests.object_storage import ObjectServer, environment, proxy_of

RATE, GROUP = 24, 48  # frames a second, and from keyframe to keyframe


def write_seed(path: Path, seconds: int = 10) -> None:
    """A few seconds of coarse noise."""
    source = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        options = {"g": str(GROUP), "crf": "26", "preset": "veryfast", "sc_threshold": "0"}
        stream = container.add_stream("libx264", rate=RATE, options=options)
        stream.height, stream.width, stream.pix_fmt = 240, 320, "yuv420p"
        for _ in range(seconds * RATE):
            pixels = source.integers(0, 256, (120, 160, 3), np.uint8).repeat(2, 0).repeat(2, 1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode(None))


def write_film(path: Path, seed: Path, minutes: float, faststart: bool) -> None:
    """Repeat the packets of the seed until the film is long enough."""
    with (
        av.open(str(seed)) as given,
        av.open(str(path), "w", options={"movflags": "faststart"} if faststart else {}) as film,
    ):
        old = given.streams.video[0]
        stream = film.add_stream_from_template(old)
        packets = [packet for packet in given.demux(old) if packet.size]
        step = int(1 / RATE / old.time_base)
        length = step * len(packets)
        for turn in range(int(minutes * 60 * RATE) // len(packets)):
            for packet in packets:
                copy = av.Packet(bytes(packet))
                copy.pts, copy.dts = packet.pts + turn * length, packet.dts + turn * length
                copy.is_keyframe, copy.time_base, copy.stream = packet.is_keyframe, old.time_base, stream
                film.mux(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--windows", type=int, default=20, help="windows of four frames, as an index reads them")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ObjectServer() as server, proxy_of(server.port) as proxy:
        server.make_bucket("films")
        write_seed(seed := Path(folder) / "seed.mp4")
        with environment(proxy.variables):
            for name, faststart in (("header-first.mp4", True), ("header-last.mp4", False)):
                path = Path(folder) / name
                write_film(path, seed, chosen.minutes, faststart)
                measure(path, server.port, proxy, chosen.windows)


def measure(path: Path, port: int, proxy, windows: int) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port)
    with path.open("rb") as file:
        connection.request("PUT", f"/films/{path.name}", file, {"Content-Length": str(path.stat().st_size)})
        assert connection.getresponse().status == 200
    size = path.stat().st_size
    print(f"{path.name}: {size / 1e6:.1f} MB")
    for seek in ("exact", "keyframe"):
        proxy.sent = proxy.requests = 0
        begun = time.monotonic()
        with open_video(f"s3://films/{path.name}") as video, open_video(path) as local:
            opened = proxy.sent
            clip = video.sample(24, seek)
            sampled, took = proxy.sent, time.monotonic() - begun
            same = np.array_equal(clip.frames, local.sample(24, seek).frames)
            requests = proxy.requests
            cut = list(video.windows(windows, 4, seek))
        print(
            f"  {seek}: {sampled / 1e6:.1f} MB ({100 * sampled / size:.1f} %) in {requests} requests and {took:.1f} s, "
            f"of which {opened / 1e6:.1f} MB to open it; the same frames as from the disk: {same}; with {len(cut)} "
            f"windows of 4 frames: {proxy.sent / 1e6:.1f} MB ({100 * proxy.sent / size:.1f} %)",
            flush=True,
        )


if __name__ == "__main__":
    main()
