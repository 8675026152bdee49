# docker build -t bert-recipes . && docker run --gpus all --shm-size 8g -v "$PWD/data:/app/data" -v "$PWD/runs:/app/runs" bert-recipes make pretrain
# Another base with Python 3.11 or newer and its venv: --build-arg BASE=my_image
ARG BASE=python:3.12-slim
FROM ${BASE}
# make and git for the targets, a C++ compiler for the CPU kernels; the CUDA libraries come with torch's wheel.
RUN apt-get update && apt-get install -y --no-install-recommends make git g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY constraints.txt pyproject.toml README.md LICENSE Makefile ./
COPY src src
RUN make install
COPY . .
ENV HF_HOME=/app/data/huggingface
CMD ["make", "pretrain"]
