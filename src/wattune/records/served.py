"""Values that a server and its devices exchange beside the records: models, sweeps, and the status of a device."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from wattune.cap import CapSide
from wattune.records.base import BatchSize, Flag, NotNegative, Number, Positive, Record, Samples, Share, Value, number
from wattune.records.efficiency import EfficiencyStrategy

FACTORIES = (
    "character-transformer",
    "resnet18",
    "resnet20",
    "resnet8",
    "small-cnn",
)
"""Model factories that a served model may name. No other name is looked up, so that a name cannot run code."""

SOURCES: dict[str, tuple[str, ...]] = {
    "digits": (),
    "npz": ("train", "test"),
    "text": ("train", "test"),
}
"""Sources of a proxy's data -> their keys that name a file of the server, as "sha256:..."."""

MODEL_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
DEVICE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
SHA256 = r"^[0-9a-f]{64}$"
ARCHITECTURE = r"^[a-z0-9][a-z0-9-]{0,63}$"
INPUT_SHAPE = r"^[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,3}$"
OF_SIZE = f"{ARCHITECTURE[:-1]}@{INPUT_SHAPE[1:]}"
"""Pattern of an architecture and input size, such as resnet18@3x32x32."""

ID = r"^[0-9a-f]{32}$"
"""Pattern of the id of a profile, a job or a training record on the server."""

ModelName = Annotated[str, Field(pattern=MODEL_NAME)]
DeviceName = Annotated[str, Field(pattern=DEVICE_NAME)]
Sha256 = Annotated[str, Field(pattern=SHA256)]
Id = Annotated[str, Field(pattern=ID)]
Dimension = Annotated[int, Field(ge=1, le=1_000_000)]
Text = Annotated[str, Field(max_length=200)]


class Strict(Value):
    """A value from outside; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServedFile(Strict):
    """A file of the server, by its content."""

    sha256: Sha256
    bytes: Annotated[int, BeforeValidator(number), Field(ge=1)]


class ServedOptimizer(Strict):
    """``wattune.OptimizerRule`` as JSON."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: Positive = 5e-4
    reference_batch_size: BatchSize = 128
    scaling: Literal["sqrt", "linear", "none"] = "sqrt"
    weight_decay: NotNegative | None = None
    momentum: Share = 0.0


class ServedAugmentation(Strict):
    """``wattune.Augmentation`` as JSON."""

    flip: Flag = False
    shift: Annotated[int, BeforeValidator(number), Field(ge=0, le=1000)] = 0
    noise: NotNegative = 0.0


class ServedProxy(Strict):
    """The proxy of a model: data on the server, and the differences from the model's own recipe.

    ``data``: the table [data] of a workload file; files are named as "sha256:..." of a file on the server. ``target``:
    also a share of the way to the plateau, such as "80%".
    """

    data: dict[str, Any]
    target: Number | Annotated[str, Field(pattern=r"^[0-9]{1,2}(\.[0-9]{1,6})?%$")] | None = None
    budget_samples: BatchSize | None = None

    @model_validator(mode="after")
    def _allowed(self) -> Self:
        source = self.data.get("source")
        if source not in SOURCES:
            raise ValueError(f"a data source out of {', '.join(SOURCES)}")
        for key, value in self.data.items():
            if not isinstance(key, str) or not _is_plain(value):
                raise ValueError("numbers, truth values, short texts and lists of them in the data of a proxy")
            names_file = key in ("train", "test")
            if names_file and (key not in SOURCES[source] or not re.fullmatch(r"sha256:[0-9a-f]{64}", str(value))):
                raise ValueError(f"a file of the server as sha256:..., in {' and '.join(SOURCES[source]) or 'no key'}")
            if isinstance(value, str) and key not in ("source", "vocabulary") and not names_file:
                raise ValueError(f"no text in {key}")
        return self

    @property
    def files(self) -> tuple[str, ...]:
        """SHA-256 of the server's files that the data is read from."""
        return tuple(str(v).removeprefix("sha256:") for v in self.data.values() if str(v).startswith("sha256:"))


class ServedModel(Record):
    """A pre-trained model that a server offers, with its training recipe and its proxy.

    The fields are those of a workload file (docs/workload-file.md): ``factory`` is the name of [model], one of
    ``FACTORIES``; ``target`` and ``budget_samples`` are the defaults for a device. ``weights`` is a safetensors file of
    the server, None for random initial weights.
    """

    name = "model"
    written_by = "wattune-server store add"
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: ModelName
    factory: Literal[FACTORIES]  # type: ignore[valid-type]
    options: dict[str, int | float | bool | str | None] = Field(default_factory=dict, max_length=32)
    input_shape: Annotated[tuple[Dimension, ...], Field(min_length=1, max_length=4)]
    task: Literal["classification", "language", "regression"] = "classification"
    data_type: Literal["fp32", "tf32", "fp16", "bf16"] = "fp32"
    loss: Literal["cross_entropy", "mse", "mae"] | None = None
    metric: Literal["accuracy", "character_accuracy", "loss", "mse", "mae"] | None = None
    optimizer: ServedOptimizer = ServedOptimizer()
    augmentation: ServedAugmentation = ServedAugmentation()
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(min_length=1, max_length=64)] = (4, 8, 16, 32, 64, 128)
    evaluate_every: BatchSize | None = None
    budget_samples: BatchSize
    target: Number | None = None
    host_s_per_sample: NotNegative = 0.0002
    reinitialise: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    train_only: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    weights: ServedFile | None = None
    proxy: ServedProxy

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.batch_sizes) != sorted(set(self.batch_sizes)):
            raise ValueError("batch_sizes ascending, each once")
        return self

    @property
    def files(self) -> tuple[str, ...]:
        """SHA-256 of every file of the server that the model needs."""
        return (*(() if self.weights is None else (self.weights.sha256,)), *self.proxy.files)

    @property
    def size(self) -> str:
        """Architecture and input size, such as resnet18@3x32x32."""
        return f"{self.factory}@{'x'.join(map(str, self.input_shape))}"

    @property
    def digest(self) -> str:
        """SHA-256 of all fields that a proxy run depends on: the record without its version and provenance."""
        return digest(self.model_dump(mode="json", exclude={"version", "provenance"}))


SweepState = Literal["waiting", "running", "done", "failed", "parked", "cancelled"]
"""``failed``: the request cannot be fulfilled. ``parked``: a run failed repeatedly and needs an operator."""


class SweepRequest(Strict):
    """Request for the samples to target of each batch size of ``model``, estimated on its proxy.

    ``strategy``, ``seeds``, ``target`` and ``log_step_times`` as in ``wattune.proxy.estimate``; ``batch_sizes``: None
    for all of the model's.
    """

    model: ModelName
    algorithm: Annotated[str, Field(max_length=100)] = "backprop"
    strategy: EfficiencyStrategy = "pooled"
    seeds: Annotated[int, BeforeValidator(number), Field(ge=1, le=100)] | None = None
    target: Number | None = None
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(min_length=1, max_length=64)] | None = None
    log_step_times: dict[int, tuple[Number, NotNegative]] | None = None

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.strategy == "pooled" and self.seeds is not None:
            raise ValueError("seeds with the strategy full only")
        if self.strategy == "full" and self.log_step_times is not None:
            raise ValueError("log_step_times with the strategy pooled only")
        return self

    def key(self, model_digest: str) -> str:
        """The name of the job: equal requests for the same model share a job."""
        return digest({**self.model_dump(mode="json"), "digest": model_digest})[:32]


class SweepRun(Value):
    """One finished proxy run of a sweep. ``curve``: hash of its learning curve."""

    batch_size: BatchSize
    seed: Samples
    samples: Samples | None = None
    reached: Flag | None = None
    curve: Sha256 | None = None


class SweepStatus(Value):
    """Status of a job on the server. ``runs_most``: the largest number of runs that it may take."""

    job: str
    request: SweepRequest
    state: SweepState
    runs: tuple[SweepRun, ...] = ()
    runs_done: Samples = 0
    runs_most: Samples = 0
    reason: str | None = None
    created_s: Number
    finished_s: Number | None = None

    @property
    def ended(self) -> bool:
        """True if the job is in a final state, or parked."""
        return self.state not in ("waiting", "running")


class DeviceStatus(Strict):
    """Status of a device, as it reports it. ``share``: the finished share of the current step.

    ``above_cap_s``: seconds of this run in which the mean power over the cap's window was above it. ``metric_name``:
    the metric of ``metric`` and ``target``, such as "accuracy" or "mse"; None if not reported. ``profile``, ``job``:
    ids of the profile and the job that the plan is based on. ``throttled``: what throttles the board's clocks now.
    """

    device: DeviceName
    board: Text
    kind: Literal["measured", "simulated", "recorded", "replayed"] | None = None
    model: ModelName | None = None
    run: Annotated[str, Field(max_length=64)] | None = None
    step: Literal["waiting", "profile", "estimate", "plan", "train", "compare", "done", "failed"]
    share: Share = 0.0
    says: Annotated[str, Field(max_length=500)] | None = None
    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    power_w: NotNegative | None = None
    above_cap_s: NotNegative | None = None
    temperature_c: Number | None = None
    throttled: Annotated[tuple[Text, ...], Field(max_length=20)] = ()
    batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    metric: Number | None = None
    metric_name: Text | None = None
    target: Number | None = None
    samples: Samples | None = None
    profile: Id | None = None
    job: Id | None = None


def digest(value: object) -> str:
    """SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= 1000 and all(isinstance(v, (bool, int, float)) for v in value)
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 500)
