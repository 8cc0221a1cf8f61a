# Index and search videos on an NVIDIA GPU.
#
#   docker build -f docker/cuda.Dockerfile -t allocembed:cuda .
#
# torch's own packages bring CUDA; the machine needs a driver and the NVIDIA container toolkit (docker run --gpus all).
FROM python:3.12-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/data/models \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video

# Triton compiles our attention kernel when it first runs, and needs a C compiler for it.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

# PyNvVideoCodec decodes videos on the GPU.
RUN pip install "torch>=2.11,<2.14" "PyNvVideoCodec>=2.2,<3"

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY allocembed allocembed
# The versions are the ranges of pyproject.toml.
# hadolint ignore=DL3013
RUN pip install ".[search,plot]"
COPY docker/healthcheck.py /usr/local/lib/healthcheck.py

# Videos are mounted at /videos, read-only; indexes and models live in the volume /data.
RUN useradd --uid 10001 --user-group --create-home allocembed && install -d -o allocembed -g allocembed /data
USER 10001:10001
WORKDIR /data
VOLUME /data

EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "/usr/local/lib/healthcheck.py"]
ENTRYPOINT ["allocembed"]
CMD ["serve", "/data/videos.index", "--host", "0.0.0.0"]
