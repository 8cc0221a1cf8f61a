# Index and search videos without a GPU.
#
#   docker build -f docker/cpu.Dockerfile -t allocembed:cpu .
#
# docs/integrations.md shows how to run it.
FROM python:3.12-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/data/models

# The CPU build of torch is a tenth of the CUDA one. A layer of its own, because it changes least.
RUN pip install --index-url https://download.pytorch.org/whl/cpu "torch>=2.11,<2.14"

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
