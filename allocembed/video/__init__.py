"""Read videos: files, folders of images, and frames in memory. Nothing here imports torch."""

from allocembed.video.clip import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    Clip,
    DecodeLimits,
    Pixels,
    Seek,
    VideoInfo,
    candidate_indices,
    is_video,
)
from allocembed.video.decoders.base import Decoders
from allocembed.video.file import Source, open_video, probe, sample
from allocembed.video.pictures import PictureSource, read_picture
from allocembed.video.source import VideoSource

__all__ = [
    "IMAGE_SUFFIXES",
    "VIDEO_SUFFIXES",
    "Clip",
    "DecodeLimits",
    "Decoders",
    "PictureSource",
    "Pixels",
    "Seek",
    "Source",
    "VideoInfo",
    "VideoSource",
    "candidate_indices",
    "is_video",
    "open_video",
    "probe",
    "read_picture",
    "sample",
]
