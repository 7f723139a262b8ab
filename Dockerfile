# Not built where this project is developed, which has no Docker; docs/dependencies.md says how to use it.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

# gpu: CUDA 12 from jax's wheels, the host brings the driver; gpu13, tpu; or empty for the CPU alone.
ARG EXTRAS=gpu

WORKDIR /opt/jaxmarl_echelon
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt ".${EXTRAS:+[${EXTRAS}]}"

# A plain user, whose home is the working folder: runs are written below it.
RUN useradd --create-home --uid 1000 trainer
USER trainer
WORKDIR /home/trainer

ENTRYPOINT ["python", "-m"]
CMD ["jaxmarl_echelon"]
